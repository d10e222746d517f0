//! The shop: a route for each scheme, and the policies around them.
//!
//! It is compiled once for each database, which is `Db`. In a shop of one's own that is a type of sqlx.
#![allow(clippy::duplicate_mod, reason = "one shop, once for each database")]

mod bank;
mod handlers;

use std::{net::SocketAddr, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    routing::{get, post},
};
use sqlx::Pool;
use tokio::net::TcpListener;
use tower_idempotency::{
    IdempotencyLayer, Issuance, Policy, RedisStore, Rule, Scope, TokenRequest, Tokens, header, json,
};
use tower_idempotency_sqlx::DedupTable;

use handlers::Failed;

use super::{Db, open, sql};
use crate::{
    Error,
    arguments::{Point, Serve},
    gateway::TOKEN,
    notification::{Books, Notification},
    scheme::Scheme,
};

/// The rows of all routes; each has its rule's name in front.
const DEDUP: DedupTable<Db> = DedupTable::new("dedup");
/// Short, so that the story need not wait long for what was killed.
const LEASE: Duration = Duration::from_secs(3);

#[derive(Clone)]
struct App {
    db: Pool<Db>,
    tokens: Tokens,
    provider: SocketAddr,
    pause: Option<Point>,
}

pub(crate) async fn run(serve: Serve) -> Result<(), Error> {
    let db = open(&serve.database).await?;
    bank::migrate(&db).await?;
    DEDUP.migrate(&db).await?;
    let store = RedisStore::connect(&serve.redis).await?.prefix("exactly-once-example");
    let tokens = Tokens::new(store.clone());
    let app = App { db, tokens, provider: serve.provider, pause: serve.pause };

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(axum::serve(listener, routes(store, app)).await?)
}

fn routes(store: RedisStore, app: App) -> Router {
    let ledger = || DEDUP.ledger(&app.db);
    let gateway = || Policy::webhook(json("/notifyId")).lease(LEASE);
    let token = Policy::api(Scope::everyone()).token(header(TOKEN), "POST /tokens").lease(LEASE);
    let table = gateway().ledger(ledger());
    // The gateway may forget its own ids: the order is what counts.
    let order = gateway().business_key(json("/orderId")).compare([json("/amount")]);
    let order = order.ledger(ledger());

    let layer = |scheme: Scheme, policy: Policy| {
        IdempotencyLayer::new(store.clone(), Rule::new(scheme.name(), policy))
    };
    let token = layer(Scheme::Token, token);
    let table = layer(Scheme::Table, table);
    let table_and_states = layer(Scheme::TableAndStates, order.clone());
    let outside = layer(Scheme::Outside, order);
    Router::new()
        .route(Scheme::Nothing.path(), post(handlers::plain))
        .route(Scheme::Token.path(), post(handlers::plain).layer(token))
        .route(Scheme::Table.path(), post(handlers::table).layer(table))
        .route(Scheme::States.path(), post(handlers::states))
        .route(
            Scheme::TableAndStates.path(),
            post(handlers::table_and_states).layer(table_and_states),
        )
        .route(Scheme::Outside.path(), post(handlers::outside).layer(outside))
        .route("/tokens", post(issue))
        .route("/orders", post(open_order))
        .route("/orders/{id}", get(books))
        .with_state(app)
}

/// Whoever wants to charge asks for a token first.
async fn issue(State(app): State<App>) -> Result<String, Failed> {
    match app.tokens.issue(TokenRequest::new(Scheme::Token.name())).await? {
        Issuance::Token { token, .. } => Ok(token.to_text()),
        none => Err(none.to_string().into()),
    }
}

async fn open_order(
    State(app): State<App>,
    Json((order, yuan)): Json<(Notification, i64)>,
) -> Result<(), Failed> {
    Ok(bank::open(&app.db, &order, yuan).await?)
}

async fn books(State(app): State<App>, Path(order): Path<String>) -> Result<Json<Books>, Failed> {
    Ok(Json(bank::books(&app.db, &order).await?))
}

impl App {
    /// Where a process that is to be killed stands still.
    async fn pause(&self, at: Point) {
        if self.pause == Some(at) {
            println!("paused");
            std::future::pending::<()>().await;
        }
    }
}
