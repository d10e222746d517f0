//! A server that is made to be killed: one protected route, whose handler writes down outside of the
//! process and of Redis that it was started and that it ended.

mod arguments;
mod events;
mod journal;

use std::{
    collections::HashSet,
    error::Error,
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use serde::Deserialize;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::sleep,
};
use tower_idempotency::{
    IdempotencyLayer, Issuance, Operation, Policy, RedisStore, Rule, TokenRequest, Tokens, header,
    json,
};

use arguments::Arguments;
use journal::Journal;

/// How long a stopping server waits for what it has begun.
const DRAIN: Duration = Duration::from_secs(10);

/// What the handlers of this process share.
#[derive(Clone)]
struct Server {
    journal: Arc<Journal>,
    /// The ids whose held handlers were told to go on.
    told: Arc<watch::Sender<HashSet<String>>>,
    tokens: Tokens,
}

/// What a handler is to do.
#[derive(Deserialize)]
struct Run {
    id: String,
    #[serde(default)]
    takes_ms: u64,
    /// Waits for `POST /go` with the same id.
    #[serde(default)]
    held: bool,
    /// The status of its answer; 200 if it is not said.
    answers: Option<u16>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::read()?;
    events::print_warnings()?;
    let store = RedisStore::lazy(&arguments.redis)?.prefix(&arguments.prefix);
    let layer = layer(&arguments, store.clone());
    let server = Server {
        journal: Arc::new(Journal::open(&arguments.journal)?),
        told: Arc::new(watch::Sender::default()),
        tokens: Tokens::new(store),
    };
    let app = Router::new()
        .route("/run", post(run))
        .route_layer(layer.clone())
        .route("/go", post(go))
        .route("/token", post(token))
        .with_state(server);
    let listener = TcpListener::bind(&arguments.listen).await?;
    say(&format!("listening on {}", listener.local_addr()?));

    let mut terminated = signal(SignalKind::terminate())?;
    let stop = async move {
        terminated.recv().await;
        say("stopping");
    };
    if arguments.abrupt {
        tokio::select! {
            ended = axum::serve(listener, app) => ended?,
            () = stop => {}
        }
    } else {
        axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    }
    let drained = layer.drain(DRAIN).await;
    say(&format!("stopped; {} running, {} unsent", drained.running, drained.unsent));
    Ok(())
}

fn layer(arguments: &Arguments, store: RedisStore) -> IdempotencyLayer {
    let mut policy = Policy::webhook(json("/id")).lease(arguments.lease);
    if arguments.rerun {
        policy = policy.rerun_abandoned();
    }
    if arguments.orders {
        policy = policy.business_key(json("/order"));
    }
    if arguments.tokens {
        policy = policy
            .token(header("X-Once"), "POST /token")
            .business_key(json("/id"))
            .wait(Duration::from_secs(20));
    }
    IdempotencyLayer::new(store, Rule::new("run", policy))
}

async fn run(
    State(server): State<Server>,
    operation: Operation,
    Json(run): Json<Run>,
) -> (StatusCode, String) {
    server.journal.write("start", &operation);
    say(&format!("started {}", run.id));
    if run.held {
        // The sender is in the state of every handler, so it does not end before them.
        let _ = server.told.subscribe().wait_for(|told| told.contains(&run.id)).await;
    }
    sleep(Duration::from_millis(run.takes_ms)).await;
    server.journal.write("end", &operation);
    say(&format!("ended {}", run.id));
    let status = run.answers.and_then(|status| StatusCode::from_u16(status).ok());
    let answer = journal::describe(&operation);
    (status.unwrap_or(StatusCode::OK), answer)
}

/// Gives a one-time token for a run, or says why there is none.
async fn token(State(server): State<Server>, Json(run): Json<Run>) -> (StatusCode, String) {
    match server.tokens.issue(TokenRequest::new("run").business_key(run.id)).await {
        Ok(Issuance::Token { token, .. }) => (StatusCode::CREATED, token.to_text()),
        Ok(none) => (StatusCode::CONFLICT, none.to_string()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// Lets a held handler go on.
async fn go(State(server): State<Server>, Json(run): Json<Run>) {
    server.told.send_modify(|told| {
        told.insert(run.id);
    });
}

/// One line for whoever started this process. Nobody may read any more, and then it is said to
/// nobody: `println!` would panic in the handler.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
