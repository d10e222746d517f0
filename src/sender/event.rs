//! What happened to what: an identity with parts that every notification of a kind has, and parts
//! that some have.

use std::{fmt, sync::Arc};

use crate::{
    identity::{Identity, Input, Joined, Source},
    refusal::Refusal,
};

type Parts = Vec<Arc<dyn Source>>;

/// An event as a sender names it. Without one of the parts it is made of there is none; a part that
/// only tells events apart may be absent, which is another event than one with it.
#[derive(Clone, Default)]
pub(super) struct Event {
    made_of: Parts,
    told_apart_by: Parts,
}

impl Event {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn made_of(mut self, part: impl Source) -> Self {
        self.made_of.push(Arc::new(part));
        self
    }

    pub(super) fn told_apart_by(mut self, part: impl Source) -> Self {
        self.told_apart_by.push(Arc::new(part));
        self
    }
}

/// The part; a field without a value says as little as one that is not there.
fn part(source: &dyn Source, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
    Ok(source.read(from)?.filter(|identity| !identity.as_bytes().is_empty()))
}

impl Source for Event {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        let mut joined = Joined::default();
        for source in &self.made_of {
            match part(&**source, from)? {
                Some(identity) => joined.push(&identity),
                None => return Ok(None),
            }
        }
        let nothing = Identity::new("");
        for source in &self.told_apart_by {
            joined.push(&part(&**source, from)?.unwrap_or_else(|| nothing.clone()));
        }
        Ok(Some(joined.identity()))
    }

    fn reads_body(&self) -> bool {
        self.made_of.iter().chain(&self.told_apart_by).any(|part| part.reads_body())
    }

    fn describe(&self) -> String {
        let names =
            |parts: &Parts| parts.iter().map(|part| part.describe()).collect::<Vec<_>>().join(", ");
        match &*self.told_apart_by {
            [] => names(&self.made_of),
            _ => format!("{} (and {})", names(&self.made_of), names(&self.told_apart_by)),
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}
