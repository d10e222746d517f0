//! The layer through its public API, in process: each promise with its negative twin.

mod basics;
mod claims;
mod findings;
mod forgotten;
mod hazards;
mod house;
mod issuing;
mod keeper;
mod ledger;
mod metrics;
mod observe;
mod operations;
mod outcomes;
mod policy;
mod readiness;
mod recovery;
mod rows;
mod suspended;
mod table;
mod telemetry;
mod token_house;
mod token_model;
mod token_rows;
mod token_secrecy;
mod tokens;
mod waiting;
