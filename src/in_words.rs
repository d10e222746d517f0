//! Errors in words where their `Debug` is shown: Rust prints that where `main` returns one and where one is
//! unwrapped, to whoever starts the program.

use std::{error::Error, fmt};

/// The kind, the message, and what caused it so far as the message does not say it already.
pub(crate) fn debug(
    f: &mut fmt::Formatter<'_>,
    kind: Option<&dyn fmt::Debug>,
    error: &dyn Error,
) -> fmt::Result {
    if let Some(kind) = kind {
        write!(f, "{kind:?}: ")?;
    }
    let mut said = error.to_string();
    f.write_str(&said)?;
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !said.contains(&words) {
            write!(f, ": {words}")?;
            said.push_str(&words);
        }
        cause = error.source();
    }
    Ok(())
}
