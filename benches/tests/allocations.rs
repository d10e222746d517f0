//! How often memory is allocated for one request, counted exactly.
//!
//! Each figure is what a request costs over the same request to the bare app, on a warm app, in
//! memory. A figure that rises is a cost that somebody should have meant; one that falls is to be
//! written down here.

use allocation_counter::measure;
use axum::{Router, body::Body};
use http::Request;
use http_body_util::BodyExt;
use tokio::runtime::Runtime;
use tower::ServiceExt;
use tower_idempotency_benches::cell::{Cell, Store, Variant, Way, Workload};

/// Enough that what happens once in many requests, such as the growth of a map, shows.
const REQUESTS: u64 = 32;

async fn send(app: &Router, request: Request<Body>) -> bool {
    let response = app.clone().oneshot(request).await.expect("a router never fails");
    let replayed = response.headers().contains_key("idempotent-replayed");
    let body = response.into_body().collect().await.expect("bodies in memory do not break off");
    assert!(!body.to_bytes().is_empty());
    replayed
}

/// The allocations of one request, the least of many: whatever a map's growth takes now and then is
/// its own. The request itself is made before.
fn allocations(workload: Workload, variant: Variant) -> u64 {
    let cell = Cell { way: Way::Called, store: Store::Memory, workload, variant };
    let first = Cell { workload: Workload::First, ..cell };
    let runtime = runtime();
    let app = runtime.block_on(async {
        let app = cell.app(None).await;
        for request in first.requests(0, 0, 64) {
            send(&app, request).await;
        }
        app
    });
    let mut least = u64::MAX;
    for request in cell.requests(0, 64, REQUESTS) {
        let counted = measure(|| {
            let replayed = runtime.block_on(send(&app, request));
            assert_eq!(replayed, cell.replays(), "{cell}");
        });
        least = least.min(counted.count_total);
    }
    least
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("there are resources")
}

/// What each variant allocates more than the bare app: the minimum, the layer with
/// `Policy::webhook`, the layer with `Policy::api`, the layer that keeps answers of the last minute.
fn over_bare(workload: Workload) -> [i64; 4] {
    let figure = |variant| i64::try_from(allocations(workload, variant)).expect("it is small");
    let bare = figure(Variant::Bare);
    let variants = [Variant::Minimum, Variant::Layer, Variant::LayerApi, Variant::Recent];
    variants.map(|variant| figure(variant) - bare)
}

#[test]
fn what_passes_through_allocates_nothing_beside_what_every_layer_costs_axum() {
    let figure = |variant| allocations(Workload::PassThrough, variant);
    let (bare, body_type) = (figure(Variant::Bare), figure(Variant::BodyType));
    // Boxes of axum: the inner route's clone, its future, and one around each of the two bodies.
    assert_eq!(body_type - bare, 4);
    assert_eq!(figure(Variant::Layer), body_type);
    assert_eq!(figure(Variant::LayerApi), body_type);
    assert_eq!(figure(Variant::Recent), body_type);
}

/// What the layer has beside the minimum: the futures of two store calls, which outlive a client that
/// leaves, the claim that one of them asks, and the handler's future; the request's body, read whole; the answer's, in case it has no end; the
/// operation that the handler can ask, the label for an operator, what the keeper knows of the lease.
#[test]
fn a_first_delivery_allocates_this_much_more_than_bare_axum() {
    assert_eq!(over_bare(Workload::First), [8, 27, 27, 28]);
}

/// Less than nothing: the handler, which reads JSON and writes it, is not run.
#[test]
fn a_replay_allocates_this_much_more_than_bare_axum() {
    assert_eq!(over_bare(Workload::Replay), [-13, -5, -5, -8]);
}
