//! The column that a state machine lives in.

use std::{fmt, future::Future, marker::PhantomData, pin::Pin};

use sqlx::{Encode, Transaction, Type};

use crate::{
    dialect::{Dialect, sql},
    error::{Error, Kind},
    name,
    states::{Move, States},
};

/// The first one misses, the state is locked and read, and the second one cannot miss.
const TRIES: u32 = 2;

/// What the database is being asked for. Boxed, so that it is `Send` whatever the type of the id.
pub type Asked<'t, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 't>>;

/// A column of a table that holds the state of each of its rows, as a text.
///
/// # Example: all in one transaction
///
/// The charge is in the same database: [`DedupTable`](crate::DedupTable) alone makes it happen once
/// for each notification, and the state makes it happen once for each order, whatever notification,
/// job or person asks for it. Nobody else ever sees `PROCESSING`; a process that dies leaves
/// `PENDING` and no row.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # mod example {
/// use sqlx::{Sqlite, SqlitePool};
/// use tower_idempotency::{Answer, Operation};
/// use tower_idempotency_sqlx::{DedupTable, Entry, Move, Moved, StateColumn, states};
///
/// states! {
///     pub enum Order {
///         Pending = "PENDING" => Processing,
///         Processing = "PROCESSING" => Done | Failed,
///         Done = "DONE",
///         Failed = "FAILED",
///     }
/// }
///
/// const DEDUP: DedupTable<Sqlite> = DedupTable::new("dedup");
/// const ORDERS: StateColumn<Order> = StateColumn::new("orders", "id", "status");
/// const START: Move<Order> = Order::Pending.to(Order::Processing);
/// const FINISH: Move<Order> = Order::Processing.to(Order::Done);
///
/// async fn fulfil(db: &SqlitePool, op: &Operation, order: &str) -> Result<Answer, Box<dyn std::error::Error>> {
///     let mut tx = db.begin().await?;
///     let row = match DEDUP.enter(&mut tx, op).await? {
///         Entry::New(row) => row,
///         Entry::Done(answer) => return Ok(answer),
///         Entry::Mismatch => return Err("this row is another request's".into()),
///     };
///     match ORDERS.advance(&mut tx, START, order).await? {
///         Moved::Now => {}
///         // Charged already, by whatever way: this is the answer to this notification, for good.
///         Moved::Already(Order::Done) => return Ok(row.commit(tx, Answer::text("success")).await?),
///         Moved::Already(_) => return Err("this order is not to be charged".into()),
///         Moved::Missing => return Err("no such order".into()),
///     }
///     sqlx::query("INSERT INTO charges (order_id) VALUES (?)").bind(order).execute(&mut *tx).await?;
///     match ORDERS.advance(&mut tx, FINISH, order).await? {
///         Moved::Now => Ok(row.commit(tx, Answer::text("success")).await?),
///         Moved::Already(_) | Moved::Missing => Err("somebody else has changed the order".into()),
///     }
/// }
/// # }
/// ```
///
/// # Example: a charge outside, between two transactions
///
/// No database rolls a payment provider back. `PROCESSING` is committed before the charge, and `DONE`
/// after it, with the row. A process that dies in between leaves `PROCESSING`, which says that the
/// charge may have happened: it is sent again, with the same [downstream
/// key](tower_idempotency::Operation::downstream_key), and the provider makes it once. This survives
/// every crash; it needs a provider that honours the key.
///
/// The key belongs to the operation: it is the same for every notification of this order only if the
/// policy has the order for a business key.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # mod example {
/// # use sqlx::{Sqlite, SqlitePool};
/// # use tower_idempotency::{Answer, Operation};
/// # use tower_idempotency_sqlx::{DedupTable, Entry, Move, Moved, StateColumn, states};
/// # states! {
/// #     pub enum Order {
/// #         Pending = "PENDING" => Processing,
/// #         Processing = "PROCESSING" => Done | Failed,
/// #         Done = "DONE",
/// #         Failed = "FAILED",
/// #     }
/// # }
/// # const DEDUP: DedupTable<Sqlite> = DedupTable::new("dedup");
/// # const ORDERS: StateColumn<Order> = StateColumn::new("orders", "id", "status");
/// # const START: Move<Order> = Order::Pending.to(Order::Processing);
/// # const FINISH: Move<Order> = Order::Processing.to(Order::Done);
/// # async fn charge_outside(_key: &str) -> Result<(), std::io::Error> { Ok(()) }
/// async fn fulfil(db: &SqlitePool, op: &Operation, order: &str) -> Result<Answer, Box<dyn std::error::Error>> {
///     let mut tx = db.begin().await?;
///     match ORDERS.advance(&mut tx, START, order).await? {
///         // The second: somebody began and did not come to an end. The charge is repeated.
///         Moved::Now | Moved::Already(Order::Processing) => tx.commit().await?,
///         Moved::Already(Order::Done) => return Ok(Answer::text("success")),
///         Moved::Already(_) => return Err("this order is not to be charged".into()),
///         Moved::Missing => return Err("no such order".into()),
///     }
///     charge_outside(&op.downstream_key("charge")).await?;
///
///     let mut tx = db.begin().await?;
///     let row = match DEDUP.enter(&mut tx, op).await? {
///         Entry::New(row) => row,
///         Entry::Done(answer) => return Ok(answer),
///         Entry::Mismatch => return Err("this row is another request's".into()),
///     };
///     match ORDERS.advance(&mut tx, FINISH, order).await? {
///         Moved::Now | Moved::Already(Order::Done) => {
///             Ok(row.commit(tx, Answer::text("success")).await?)
///         }
///         Moved::Already(_) | Moved::Missing => Err("somebody else has changed the order".into()),
///     }
/// }
/// # }
/// ```
pub struct StateColumn<S> {
    table: &'static str,
    id_column: &'static str,
    column: &'static str,
    states: PhantomData<fn() -> S>,
}

/// What became of a move.
///
/// It must be looked at. This does not compile where warnings do not:
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # #[cfg(not(feature = "sqlite"))]
/// # compile_error!("without a database there is nothing to move");
/// # use tower_idempotency_sqlx::{Error, Move, StateColumn, states};
/// # states! { enum Order { Pending = "PENDING" => Done, Done = "DONE" } }
/// # const ORDERS: StateColumn<Order> = StateColumn::new("orders", "id", "status");
/// # const FINISH: Move<Order> = Order::Pending.to(Order::Done);
/// # async fn finish(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>) -> Result<(), Error> {
/// ORDERS.advance(tx, FINISH, "O-1").await?;
/// # Ok(())
/// # }
/// ```
///
/// And this does:
///
/// ```
/// # #![deny(unused_must_use)]
/// # #[cfg(feature = "sqlite")]
/// # mod example {
/// # use tower_idempotency_sqlx::{Error, Move, Moved, StateColumn, states};
/// # states! { enum Order { Pending = "PENDING" => Done, Done = "DONE" } }
/// # const ORDERS: StateColumn<Order> = StateColumn::new("orders", "id", "status");
/// # const FINISH: Move<Order> = Order::Pending.to(Order::Done);
/// # async fn finish(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>) -> Result<bool, Error> {
/// let done = ORDERS.advance(tx, FINISH, "O-1").await? == Moved::Now;
/// # Ok(done)
/// # }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the move may not have been made: somebody else may have made it before"]
pub enum Moved<S> {
    /// It was made, in this transaction.
    Now,
    /// It was not: this is the state. It stays so until the transaction ends.
    Already(S),
    /// There is no such row.
    Missing,
}

impl<S: States> StateColumn<S> {
    /// The states that stand in `column` of `table`, in the row whose `id_column`, which has to be
    /// unique, is the id. The column has to be a text.
    ///
    /// # Panics
    ///
    /// When a name is not made of `a-z`, `A-Z`, `0-9` and `_`, begins with a digit, or has more than
    /// 48 bytes: at compile time, where it is a constant.
    pub const fn new(table: &'static str, id_column: &'static str, column: &'static str) -> Self {
        name::check(table);
        name::check(id_column);
        name::check(column);
        Self { table, id_column, column, states: PhantomData }
    }

    /// Makes this move, unless the row is in another state. While another transaction moves the
    /// same row, this waits for it.
    ///
    /// # Errors
    ///
    /// What the database says ([`Error::is_retryable`] where it gave this transaction up for another
    /// one); [`Error::is_unknown_state`]; and where more than one row has the id.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the transaction has to be dropped too.
    pub fn advance<'t, 'q, DB, I>(
        &self,
        tx: &'t mut Transaction<'_, DB>,
        step: Move<S>,
        id: I,
    ) -> Asked<'t, Moved<S>>
    where
        DB: Dialect,
        I: Encode<'q, DB> + Type<DB> + Copy,
    {
        let column = *self;
        let values = DB::values(Some(step.to().name()), id, Some(step.from().name()));
        let looked_for = DB::values(None, id, None);
        let on: &'t mut DB::Connection = tx;
        Box::pin(async move {
            let values = values.map_err(Error::database::<DB>)?;
            let looked_for = looked_for.map_err(Error::database::<DB>)?;
            for _ in 0..TRIES {
                if column.set::<DB>(on, values.clone()).await? {
                    return Ok(Moved::Now);
                }
                // Locked, or the answer could be out of date, or older than what the update met.
                match column.look::<DB>(on, looked_for.clone()).await? {
                    None => return Ok(Moved::Missing),
                    Some(state) if state == step.from() => {}
                    Some(state) => return Ok(Moved::Already(state)),
                }
            }
            let (table, column) = (column.table, column.column);
            Err(Error::new(Kind::Unsteady { table, column, state: step.from().name() }))
        })
    }

    /// Locks the row until the transaction ends, and reads its state; `None` if there is no such row.
    /// For handlers that have to look before they decide on a move.
    ///
    /// SQLite has no locks of rows. There, begin the transaction by `begin_with("BEGIN IMMEDIATE")`,
    /// or write something first.
    ///
    /// # Errors
    ///
    /// What the database says, and [`Error::is_unknown_state`].
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the transaction has to be dropped too.
    pub fn lock<'t, 'q, DB, I>(
        &self,
        tx: &'t mut Transaction<'_, DB>,
        id: I,
    ) -> Asked<'t, Option<S>>
    where
        DB: Dialect,
        I: Encode<'q, DB> + Type<DB>,
    {
        let column = *self;
        let looked_for = DB::values(None, id, None);
        let on: &'t mut DB::Connection = tx;
        Box::pin(
            async move { column.look::<DB>(on, looked_for.map_err(Error::database::<DB>)?).await },
        )
    }

    /// Whether the row was in the state to move from.
    async fn set<DB: Dialect>(
        &self,
        on: &mut DB::Connection,
        values: DB::Arguments,
    ) -> Result<bool, Error> {
        let Self { table, id_column, column, .. } = *self;
        let update =
            format!("UPDATE {{table}} SET {column} = ? WHERE {id_column} = ? AND {column} = ?");
        let rows = DB::set_state(on, sql::<DB>(&update, table), values).await;
        match rows.map_err(Error::database::<DB>)? {
            0 => Ok(false),
            1 => Ok(true),
            rows => Err(Error::new(Kind::ManyRows { table, id_column, rows })),
        }
    }

    async fn look<DB: Dialect>(
        &self,
        on: &mut DB::Connection,
        looked_for: DB::Arguments,
    ) -> Result<Option<S>, Error> {
        let Self { table, id_column, column, .. } = *self;
        let select = format!("SELECT {column} FROM {{table}} WHERE {id_column} = ?{}", DB::LOCKED);
        let found = DB::state(on, sql::<DB>(&select, table), looked_for).await;
        let Some(found) = found.map_err(Error::database::<DB>)? else {
            return Ok(None);
        };
        match S::ALL.iter().copied().find(|state| state.name() == found) {
            Some(state) => Ok(Some(state)),
            None => Err(Error::new(Kind::UnknownState { table, column, found })),
        }
    }
}

// Derived ones would ask the same of `S`.
impl<S> Clone for StateColumn<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for StateColumn<S> {}

impl<S> fmt::Debug for StateColumn<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateColumn")
            .field("table", &self.table)
            .field("id", &self.id_column)
            .field("column", &self.column)
            .finish()
    }
}
