//! What a handler behind [`tower_idempotency`] writes in its own database, so that its effect happens
//! exactly once, whatever the layer's store loses and whenever a process dies.
//!
//! * [`DedupTable`]: a row for each operation, committed together with its effect and its answer; and the
//!   ledger of a policy ([`DedupTable::ledger`]), which the layer asks what its store cannot know.
//! * [`states!`], [`StateColumn`]: a state machine whose illegal moves do not compile, and whose moves
//!   are guarded updates.
//!
//! | feature | database |
//! |---|---|
//! | `postgres` | PostgreSQL 12 or newer |
//! | `mysql` | MySQL 8.0.13 or newer, MariaDB 10.5 or newer |
//! | `sqlite` | SQLite, which is built in |
//!
//! None is on by default. The lowest Rust version is 1.94, sqlx is 0.9, on the Tokio runtime. TLS is
//! a feature of sqlx, which a program adds to its own dependency.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(any(feature = "mysql", feature = "postgres", feature = "sqlite")),
    allow(dead_code)
)]

mod column;
mod dialect;
mod entry;
mod error;
mod ids;
mod ledger;
mod name;
mod states;
mod stored;
mod table;
mod upkeep;

pub use column::{Asked, Moved, StateColumn};
pub use dialect::Dialect;
pub use entry::{DedupRow, Entry};
pub use error::Error;
pub use ledger::DedupLedger;
pub use states::{Move, States};
#[doc(hidden)]
pub use states::{check_states, draw_states, names_differ};
pub use table::DedupTable;
