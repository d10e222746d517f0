//! Counts what handlers do, from outside of them.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

/// How often something happened. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Runs(Arc<watch::Sender<usize>>);

impl Runs {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more; how many there are with it.
    pub fn add(&self) -> usize {
        self.0.send_modify(|runs| *runs += 1);
        self.count()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until there are this many.
    ///
    /// # Panics
    ///
    /// When there are not within 20 s, or when there are more.
    pub async fn wait_for(&self, runs: usize) {
        let mut seen = self.0.subscribe();
        let enough = seen.wait_for(|count| *count >= runs);
        let enough = timeout(Duration::from_secs(20), enough).await;
        let Ok(Ok(count)) = enough.map(|seen| seen.map(|count| *count)) else {
            panic!("{} and not {runs} within 20 s", self.count());
        };
        assert_eq!(count, runs, "as many as were waited for");
    }
}
