//! Rules from a configuration: what is read, what is refused and how, and what an app does with them.

mod choices;
mod describe;
mod errors;
mod hooks;
mod placed;
mod places;
mod recent;
mod schema;
mod support;
mod token;
mod unused;
