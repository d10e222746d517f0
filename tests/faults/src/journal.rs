//! What was really run: a file that outlives the process and knows nothing of Redis.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    process,
};

use tower_idempotency::Operation;

/// A file that several processes append to, each line in one write.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn open(path: &str) -> io::Result<Self> {
        OpenOptions::new().append(true).create(true).open(path).map(Self)
    }

    /// One line: what happened, to which run.
    pub(crate) fn write(&self, what: &str, operation: &Operation) {
        let line = format!("{what} {}\n", describe(operation));
        (&self.0).write_all(line.as_bytes()).expect("the journal of the test can be written");
    }
}

/// Which run it is: id, process, attempt, fence, and what the grant found. No two runs are the same
/// in it.
pub(crate) fn describe(operation: &Operation) -> String {
    let (key, process) = (operation.key(), process::id());
    let (attempt, fence) = (operation.attempt(), operation.fence().get());
    format!("{key} {process} {attempt} {fence} {:?}", operation.previous())
}
