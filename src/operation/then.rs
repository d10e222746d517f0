//! One future after another in the same room.
//!
//! An `async` block that awaits one after the other holds its own variables, its arguments and the
//! largest of them side by side. A request's future is made, moved and freed once a request, and what
//! an allocator hands out quickly ends at a kilobyte.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

pin_project! {
    /// A future, and what makes the next of what it came to.
    #[project = Projection]
    pub(super) enum Then<A, F, B> {
        First { #[pin] first: A, next: Option<F> },
        Second { #[pin] second: B },
    }
}

/// `first`, then what `next` makes of it.
pub(super) fn then<A, F, B>(first: A, next: F) -> Then<A, F, B>
where
    A: Future,
    F: FnOnce(A::Output) -> B,
    B: Future,
{
    Then::First { first, next: Some(next) }
}

impl<A, F, B> Future for Then<A, F, B>
where
    A: Future,
    F: FnOnce(A::Output) -> B,
    B: Future,
{
    type Output = B::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let second = match self.as_mut().project() {
                Projection::Second { second } => return second.poll(cx),
                Projection::First { first, next } => {
                    let came = ready!(first.poll(cx));
                    let next = next.take().expect("the first ends once");
                    next(came)
                }
            };
            self.set(Self::Second { second });
        }
    }
}
