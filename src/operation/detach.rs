//! Work that goes on in a task of its own when the future that polls it is dropped.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tracing::{Instrument, instrument::Instrumented};

/// The span is around the box, so that what is in it need not be moved into the span first.
type Work<T> = Instrumented<Pin<Box<dyn Future<Output = T> + Send>>>;

/// Polls its work where it is awaited, and moves it to a task if it is dropped before the end.
///
/// So the handler keeps the task-locals of its request, and a panic its whole backtrace, while the
/// client stays; and it still runs to its end when the client leaves.
pub(super) struct Detach<T: Send + 'static> {
    work: Option<Work<T>>,
    runtime: Handle,
}

impl<T: Send + 'static> Detach<T> {
    /// Work in the current span.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        let work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
        Self { work: Some(work.in_current_span()), runtime: Handle::current() }
    }
}

impl<T: Send + 'static> Future for Detach<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Taken out, so that work that panics is not moved to a task to be polled again.
        let mut work = self.work.take().expect("Detach is not polled after its end");
        let poll = Pin::new(&mut work).poll(cx);
        if poll.is_pending() {
            self.work = Some(work);
        }
        poll
    }
}

impl<T: Send + 'static> Drop for Detach<T> {
    fn drop(&mut self) {
        // On a runtime that has ended, `spawn` drops the work: its guards then do what can be done.
        if let Some(work) = self.work.take() {
            drop(self.runtime.spawn(work));
        }
    }
}

/// What a panic carries.
pub(super) type Panic = Box<dyn Any + Send>;

pin_project! {
    /// Turns a panic of the inner future into a value.
    #[project = Projection]
    pub(super) enum CatchPanic<F> {
        Running { #[pin] inner: F },
        /// It panicked before there was a future.
        Panicked { panic: Option<Panic> },
    }
}

impl<F> CatchPanic<F> {
    pub(super) fn new(inner: F) -> Self {
        Self::Running { inner }
    }

    /// The future that is made here, or the panic of making it.
    pub(super) fn calling(make: impl FnOnce() -> F) -> Self {
        match catch_unwind(AssertUnwindSafe(make)) {
            Ok(inner) => Self::Running { inner },
            Err(panic) => Self::Panicked { panic: Some(panic) },
        }
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = match self.project() {
            Projection::Running { inner } => inner,
            Projection::Panicked { panic } => {
                return Poll::Ready(Err(panic.take().expect("it is not polled after its end")));
            }
        };
        // The future is not polled again after a panic, and the panic goes on once it is recorded.
        match catch_unwind(AssertUnwindSafe(|| inner.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}
