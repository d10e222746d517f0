//! The server's clock as it was last heard.

use std::{
    sync::atomic::{AtomicI64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

/// The server's clock: what was last heard, plus the time since then by our own monotonic clock.
///
/// What was heard was said before it was heard, so the estimate never runs ahead of the server; a
/// claim's deadline is then never later than its owner meant it to be.
pub(super) struct Clock {
    started: Instant,
    /// The server's ms when `started` was, or a little less.
    offset_ms: AtomicI64,
    /// Ms from `started` to when it was last heard.
    heard_ms: AtomicI64,
}

impl Clock {
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            started: Instant::now(),
            offset_ms: AtomicI64::new(signed(now_ms)),
            heard_ms: AtomicI64::new(0),
        }
    }

    pub(super) fn heard(&self, now_ms: u64) {
        // Rounded up here and down in the estimate: both make it earlier.
        let since = self.started.elapsed().as_millis() as i64 + 1;
        self.offset_ms.store(signed(now_ms) - since, Relaxed);
        self.heard_ms.store(since, Relaxed);
    }

    /// What the server's clock said at this time of ours.
    pub(super) fn estimate(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.started).as_millis() as i64;
        // Never 0 or 1, which mean something else in a claim.
        u64::try_from(self.offset_ms.load(Relaxed) + since).unwrap_or_default().max(2)
    }

    /// How long nothing has been heard.
    pub(super) fn silent_for(&self) -> Duration {
        let since = self.started.elapsed().as_millis() as i64 - self.heard_ms.load(Relaxed);
        Duration::from_millis(u64::try_from(since).unwrap_or_default())
    }
}

/// A time in ms since 1970 fits for the next 140 million years, with room for what is added.
fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_never_ahead_of_what_was_heard_and_follows_the_server_back() {
        let clock = Clock::new(1_000_000);
        assert!((1_000_000..1_000_900).contains(&clock.estimate(Instant::now())));
        clock.heard(2_000_000);
        assert!((1_999_990..2_000_900).contains(&clock.estimate(Instant::now())));
        clock.heard(500_000);
        assert!((499_990..500_900).contains(&clock.estimate(Instant::now())));
        for absurd in [0, i64::MAX as u64, u64::MAX] {
            clock.heard(absurd);
            assert!(clock.estimate(Instant::now()) >= 2, "{absurd}");
        }
    }
}
