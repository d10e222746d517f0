//! Answers from the process itself, where the layer keeps some: looked for before the store is asked,
//! and filled from its answers alone.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{Shared, subject::Subject};
#[cfg(feature = "recent")]
use crate::store::Recent;
use crate::{
    record::{Fingerprint, RecordKey},
    refusal::Refusal,
};

#[cfg(feature = "recent")]
impl Shared {
    /// The same, with this much room for answers.
    pub(crate) fn recent(self, bytes: usize) -> Self {
        Self { recent: (bytes > 0).then(|| Recent::new(bytes)), ..self }
    }

    /// What `read` makes of the stored answer to a claim of this operation with this fingerprint, if it is
    /// known here.
    pub(super) fn recent_answer<T>(
        &self,
        subject: &Subject,
        print: Option<Fingerprint>,
        read: impl FnOnce(&Subject, Bytes) -> Result<T, Refusal>,
    ) -> Option<T> {
        let payload = self.recent.as_ref()?.get(&subject.record, print)?;
        // What cannot be read is for the store to say.
        let answer = read(subject, payload).ok()?;
        subject.rule.metrics().recent_replays.increment(1);
        Some(answer)
    }

    /// The store has this answer: it said so after `asked`, and keeps it for `left` from then on.
    pub(super) fn keep_recent(
        &self,
        key: RecordKey,
        print: Option<Fingerprint>,
        payload: &Bytes,
        asked: Instant,
        left: Duration,
    ) {
        if let Some(recent) = &self.recent {
            recent.put(key, print, payload, asked, left);
        }
    }
}

/// Without the feature nothing is kept.
#[cfg(not(feature = "recent"))]
#[expect(clippy::unused_self, reason = "it is the same with the feature")]
impl Shared {
    pub(super) fn recent_answer<T>(
        &self,
        _: &Subject,
        _: Option<Fingerprint>,
        _: impl FnOnce(&Subject, Bytes) -> Result<T, Refusal>,
    ) -> Option<T> {
        None
    }

    pub(super) fn keep_recent(
        &self,
        _: RecordKey,
        _: Option<Fingerprint>,
        _: &Bytes,
        _: Instant,
        _: Duration,
    ) {
    }
}
