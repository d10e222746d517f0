//! Connections that one call has for itself: `WAIT` holds up whatever comes behind it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::link::Link;

/// So many calls wait for replicas at once; more wait for one of them.
const AT_MOST: usize = 16;

/// The connections beside the shared one, made as they are needed.
pub(super) struct Side {
    permits: Semaphore,
    /// Those that nobody has. The one that was used last is used next, so that few are kept open.
    free: Mutex<Vec<Arc<Link>>>,
}

/// A connection that nobody else has.
pub(super) struct Alone<'a> {
    pub(super) link: Arc<Link>,
    side: &'a Side,
    _permit: SemaphorePermit<'a>,
}

impl Side {
    pub(super) fn new() -> Self {
        Self { permits: Semaphore::new(AT_MOST), free: Mutex::default() }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        // Nothing under the lock can leave it half changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of them, to the server of `main`.
    pub(super) async fn alone(&self, main: &Link) -> Alone<'_> {
        let permit = self.permits.acquire().await.expect("the semaphore is never closed");
        let link = self.free().pop().unwrap_or_else(|| main.beside());
        Alone { link, side: self, _permit: permit }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.side.free().push(self.link.clone());
    }
}
