//! The points of a request at which this process can be held, to be killed there.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use serde::Deserialize;
use tokio::sync::watch;
use tower_idempotency::test_util::{Fault, Faults, Gate, Transition};

/// Where requests are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Point {
    /// The store has granted the claim, and nobody has heard of it yet.
    Claimed,
    /// In the handler, before its transaction.
    Handler,
    /// In the transaction: the row is there and nothing else.
    Entered,
    /// In the transaction: everything is done but the commit.
    Charged,
    /// It is committed, and nobody knows yet.
    Committed,
    /// The completion is not sent yet.
    Completing,
    /// The completion is stored, and the layer has not heard of it.
    Completed,
    /// The layer has given its answer, which has not left the process.
    Answering,
}

/// Which point is armed, and how many requests are held there.
#[derive(Clone)]
pub(crate) struct Points(Arc<State>);

struct State {
    armed: watch::Sender<Option<Point>>,
    held: AtomicUsize,
    faults: Faults,
    gate: Mutex<Gate>,
}

impl Points {
    /// With these faults for the points that are the store's.
    pub(crate) fn new(faults: Faults) -> Self {
        Self(Arc::new(State {
            armed: watch::Sender::new(None),
            held: AtomicUsize::new(0),
            faults,
            gate: Mutex::default(),
        }))
    }

    /// Holds everybody who comes to this point from now on.
    pub(crate) fn arm(&self, point: Point) {
        self.disarm();
        let gate = Gate::new();
        let fault = match point {
            Point::Claimed => Some((Transition::Claim, Fault::HoldAnswer(gate.clone()))),
            Point::Completing => Some((Transition::Complete, Fault::Hold(gate.clone()))),
            Point::Completed => Some((Transition::Complete, Fault::HoldAnswer(gate.clone()))),
            _ => None,
        };
        if let Some((transition, fault)) = fault {
            *self.0.gate.lock().expect("no holder panics") = gate.clone();
            self.0.faults.always(transition, fault);
            let points = self.clone();
            tokio::spawn(async move {
                for calls in 1.. {
                    gate.arrived(calls).await;
                    points.0.held.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        self.0.armed.send_replace(Some(point));
    }

    /// Lets everybody go on.
    pub(crate) fn disarm(&self) {
        self.0.faults.heal();
        self.0.gate.lock().expect("no holder panics").open();
        self.0.armed.send_replace(None);
        self.0.held.store(0, Ordering::SeqCst);
    }

    /// How many were held since it was armed.
    pub(crate) fn held(&self) -> usize {
        self.0.held.load(Ordering::SeqCst)
    }

    /// A request comes to this point, which is not the store's.
    pub(crate) async fn pass(&self, point: Point) {
        let mut armed = self.0.armed.subscribe();
        if *armed.borrow_and_update() == Some(point) {
            self.0.held.fetch_add(1, Ordering::SeqCst);
            // It fails when the sender is gone, which is in `self`.
            let _ = armed.wait_for(|armed| *armed != Some(point)).await;
        }
    }
}
