//! A shop that is made to be killed: notifications of paid orders move money from an account to the
//! merchant, in one transaction with the row of the operation. Where a request is can be held, so
//! that a test kills the process at exactly that point.

mod arguments;
mod mariadb;
mod points;
mod postgres;
mod sqlite;

use std::{
    error::Error,
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tower_idempotency::{
    Answer, IdempotencyLayer, Ledger, Policy, RedisStore, Resolution, Rule, Rules, Scope, json,
    test_util::FaultyStore,
};

use arguments::{Arguments, Without};
use points::{Point, Points};

/// How many connections each process has: those that wait for another's transaction hold one each.
const CONNECTIONS: u32 = 20;

/// What the handlers of this process share, whatever the database.
#[derive(Clone)]
struct Process {
    arguments: Arguments,
    points: Points,
    runs: Arc<AtomicUsize>,
    layer: Arc<OnceLock<IdempotencyLayer>>,
}

/// What the sender says of an order that was paid.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Notification {
    order_id: String,
    account: String,
    /// Which of the merchant's accounts gets it: with a single one all orders would wait for each other.
    till: String,
    amount: i64,
}

/// What a test is told of this process.
#[derive(Serialize)]
struct Report {
    /// Requests that are held.
    held: usize,
    /// Handlers that were started.
    runs: usize,
}

/// A run's own answer: no two runs give the same.
#[derive(Debug)]
struct Receipt {
    charge: String,
    by: u32,
}

impl Receipt {
    fn new() -> Self {
        Self { charge: format!("{:032x}", rand::random::<u128>()), by: std::process::id() }
    }

    fn paid(&self) -> Answer {
        Answer::text(format!("paid {} {}", self.charge, self.by))
    }

    fn refused(&self) -> Answer {
        let text = format!("refused {} {}", self.charge, self.by);
        Answer::text(text).with_status(axum::http::StatusCode::PAYMENT_REQUIRED)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments = Arguments::read()?;
    let store = FaultyStore::new(RedisStore::lazy(&arguments.redis)?.prefix("crashes"));
    let points = Points::new(store.faults());
    let process =
        Process { arguments, points: points.clone(), runs: Arc::default(), layer: Arc::default() };
    let kind = process.arguments.database.split(':').next().unwrap_or_default();
    let shop = match kind {
        "postgres" => postgres::open(&process, store).await?,
        "mysql" => mariadb::open(&process, store).await?,
        "sqlite" => sqlite::open(&process, store).await?,
        _ => return Err(format!("there is no database {kind}").into()),
    };
    let control = Router::new()
        .route("/arm", post(arm))
        .route("/disarm", post(disarm))
        .route("/drain", post(drain))
        .route("/report", get(report))
        .with_state(process);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // Nobody may read any more.
    let _ = writeln!(io::stdout(), "listening on {address}");
    axum::serve(listener, shop.merge(control)).await?;
    Ok(())
}

/// The two routes of this process behind the layer: a gateway's notifications, and a client that pays
/// by itself. `ledger` is their table.
fn protect<T: Clone + Send + Sync + 'static>(
    routes: Router<T>,
    process: &Process,
    store: FaultyStore<RedisStore>,
    ledger: impl Ledger + Clone,
) -> Router<T> {
    let id = || json("/notifyId");
    let with_ledger = |policy: Policy| {
        let policy = policy
            .business_key((json("/orderId"), json("/event")))
            .lease(process.arguments.lease)
            .max_run(process.arguments.max_run);
        match process.arguments.without {
            Some(Without::Table) => policy.rerun_abandoned(),
            Some(Without::Ledger) => policy.resolve_abandoned(|_| async { Resolution::NotDone }),
            Some(Without::OneCommit) | None => policy.ledger(ledger.clone()),
        }
    };
    let rules = Rules::new()
        .add(Rule::new("notify", with_ledger(Policy::webhook(id()))).path("/notify"))
        .add(
            Rule::new("pay", with_ledger(Policy::api(Scope::everyone()).identity(id())))
                .path("/pay"),
        );
    let layer = process.layer.get_or_init(|| IdempotencyLayer::new(store, rules)).clone();
    routes
        .route_layer(layer)
        .route_layer(from_fn_with_state(process.points.clone(), hold_the_answer))
}

async fn hold_the_answer(State(points): State<Points>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    points.pass(Point::Answering).await;
    response
}

async fn arm(State(process): State<Process>, Json(point): Json<Point>) {
    process.points.arm(point);
}

async fn disarm(State(process): State<Process>) {
    process.points.disarm();
}

/// Starts nothing new, and answers when all that ran is in the store.
async fn drain(State(process): State<Process>) -> StatusCode {
    let Some(layer) = process.layer.get() else { return StatusCode::NOT_FOUND };
    match layer.drain(Duration::from_secs(20)).await.is_clean() {
        true => StatusCode::NO_CONTENT,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn report(State(process): State<Process>) -> Json<Report> {
    let runs = process.runs.load(Ordering::SeqCst);
    Json(Report { held: process.points.held(), runs })
}
