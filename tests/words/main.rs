//! What the documents say, held against what the code does.

mod app;
mod errors;
mod events;
mod lowest;
mod problems;
mod readme;
mod redis;
mod settling;
mod token_route;
