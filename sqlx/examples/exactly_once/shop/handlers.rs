//! The schemes, a handler each.
//!
//! `app.pause` stands for the moment at which a process dies: there the story kills it.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tower_idempotency::{Answer, Operation};
use tower_idempotency_sqlx::{Entry, Move, Moved, StateColumn, states};

use super::{App, DEDUP, bank};
use crate::{
    Error,
    arguments::Point,
    notification::Notification,
    provider::{self, Charge},
};

states! {
    /// What has become of an order.
    pub(super) enum Order {
        Pending = "PENDING" => Processing,
        Processing = "PROCESSING" => Done,
        Done = "DONE",
    }
}

const ORDERS: StateColumn<Order> = StateColumn::new("orders", "id", "status");
const START: Move<Order> = Order::Pending.to(Order::Processing);
const FINISH: Move<Order> = Order::Processing.to(Order::Done);

type Answered = Result<Answer, Failed>;

/// The handler of the incident. Behind a one-time token it is the first scheme.
pub(super) async fn plain(State(app): State<App>, Json(n): Json<Notification>) -> Answered {
    let mut tx = app.db.begin().await?;
    bank::charge(&mut tx, &n).await?;
    app.pause(Point::BeforeCommit).await;
    tx.commit().await?;
    app.pause(Point::AfterCommit).await;
    Ok(Answer::text("success"))
}

/// The second scheme: a row for each notification, in the transaction of the charge.
pub(super) async fn table(
    State(app): State<App>,
    op: Operation,
    Json(n): Json<Notification>,
) -> Answered {
    let mut tx = app.db.begin().await?;
    let row = match DEDUP.enter(&mut tx, &op).await? {
        Entry::New(row) => row,
        Entry::Done(answer) => return Ok(answer),
        Entry::Mismatch => return Err("this row is another notification's".into()),
    };
    bank::charge(&mut tx, &n).await?;
    app.pause(Point::BeforeCommit).await;
    let answer = row.commit(tx, Answer::text("success")).await?;
    app.pause(Point::AfterCommit).await;
    Ok(answer)
}

/// The third scheme: only a pending order is charged.
pub(super) async fn states(State(app): State<App>, Json(n): Json<Notification>) -> Answered {
    let mut tx = app.db.begin().await?;
    match ORDERS.advance(&mut tx, START, &n.order_id).await? {
        Moved::Now => {}
        Moved::Already(state) => return Ok(already(state)),
        Moved::Missing => return Err("there is no such order".into()),
    }
    bank::charge(&mut tx, &n).await?;
    let Moved::Now = ORDERS.advance(&mut tx, FINISH, &n.order_id).await? else {
        return Err("somebody else has changed the order".into());
    };
    app.pause(Point::BeforeCommit).await;
    tx.commit().await?;
    app.pause(Point::AfterCommit).await;
    Ok(Answer::text("success"))
}

/// The second and the third together.
pub(super) async fn table_and_states(
    State(app): State<App>,
    op: Operation,
    Json(n): Json<Notification>,
) -> Answered {
    let mut tx = app.db.begin().await?;
    let row = match DEDUP.enter(&mut tx, &op).await? {
        Entry::New(row) => row,
        Entry::Done(answer) => return Ok(answer),
        Entry::Mismatch => return Err("this row is another notification's".into()),
    };
    match ORDERS.advance(&mut tx, START, &n.order_id).await? {
        Moved::Now => {}
        // Charged by another way, a job or a person: that is this notification's answer for good.
        Moved::Already(state) => return Ok(row.commit(tx, already(state)).await?),
        Moved::Missing => return Err("there is no such order".into()),
    }
    bank::charge(&mut tx, &n).await?;
    let Moved::Now = ORDERS.advance(&mut tx, FINISH, &n.order_id).await? else {
        return Err("somebody else has changed the order".into());
    };
    app.pause(Point::BeforeCommit).await;
    let answer = row.commit(tx, Answer::text("success")).await?;
    app.pause(Point::AfterCommit).await;
    Ok(answer)
}

/// The same where somebody else charges, whom no transaction takes along.
///
/// PROCESSING is committed before the charge: it says that there may have been one. Who finds it sends
/// the charge again, under the key that is the same on every attempt, and the provider makes it once.
pub(super) async fn outside(
    State(app): State<App>,
    op: Operation,
    Json(n): Json<Notification>,
) -> Answered {
    if let Some(answer) = DEDUP.find(&app.db, &op).await? {
        return Ok(answer);
    }
    let mut tx = app.db.begin().await?;
    match ORDERS.advance(&mut tx, START, &n.order_id).await? {
        Moved::Now | Moved::Already(Order::Processing) => tx.commit().await?,
        Moved::Already(state) => return Ok(already(state)),
        Moved::Missing => return Err("there is no such order".into()),
    }
    let charge = Charge { order_id: n.order_id.clone(), amount: n.amount };
    provider::charge(app.provider, &op.downstream_key("charge"), &charge).await?;
    app.pause(Point::BeforeCommit).await;

    let mut tx = app.db.begin().await?;
    let row = match DEDUP.enter(&mut tx, &op).await? {
        Entry::New(row) => row,
        Entry::Done(answer) => return Ok(answer),
        Entry::Mismatch => return Err("this row is another notification's".into()),
    };
    match ORDERS.advance(&mut tx, FINISH, &n.order_id).await? {
        Moved::Now | Moved::Already(Order::Done) => {}
        Moved::Already(_) | Moved::Missing => {
            return Err("somebody else has changed the order".into());
        }
    }
    let answer = row.commit(tx, Answer::text("success")).await?;
    app.pause(Point::AfterCommit).await;
    Ok(answer)
}

fn already(state: Order) -> Answer {
    Answer::text(format!("already_{}", state.name().to_lowercase()))
}

/// It did not happen: the transaction was dropped. To be delivered again.
pub(super) struct Failed(Error);

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, [("Retry-After", "1")], self.0.to_string())
            .into_response()
    }
}
