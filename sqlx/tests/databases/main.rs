//! The promises of the table and of the state column, each kept on every database.

mod house;
mod mysql;
mod operation;
mod postgres;
mod sqlite;
