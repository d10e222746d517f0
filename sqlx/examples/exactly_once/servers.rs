//! The shop as a process, which can be killed, and what survives it.

use std::net::SocketAddr;

use axum::http::{Request, StatusCode, header::CONTENT_TYPE};
use tokio::task::block_in_place;
use tower_idempotency_test_support::{Process, RedisServer, Server};

use crate::{
    Error,
    arguments::{Point, Serve},
    notification::{Books, Notification},
    provider::Provider,
};

/// All that a shop needs.
pub(crate) struct Servers {
    database: String,
    redis: RedisServer,
    pub(crate) provider: Provider,
}

/// A process that serves; killed when it is dropped.
pub(crate) struct Shop {
    process: Process,
    address: SocketAddr,
}

impl Servers {
    pub(crate) fn new(database: String, redis: RedisServer, provider: Provider) -> Self {
        Self { database, redis, provider }
    }

    /// Starts this program once more, and waits until it listens.
    pub(crate) fn shop(&self, pause: Option<Point>) -> Result<Shop, Error> {
        let serve = Serve {
            database: self.database.clone(),
            redis: self.redis.url(),
            provider: self.provider.address(),
            pause,
        };
        let arguments = serve.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let process = Process::start(std::env::current_exe()?, &arguments);
        let line = block_in_place(|| process.wait_for_line("listening on "));
        let address = line.strip_prefix("listening on ").ok_or("it says where it listens")?;
        Ok(Shop { address: address.parse()?, process })
    }

    /// Redis forgets everything.
    pub(crate) async fn flush_redis(&self) {
        self.redis.command(&["FLUSHALL"]).await;
    }
}

impl Shop {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills it (SIGKILL) as soon as a handler stands where it was told to pause.
    pub(crate) fn kill_when_paused(mut self) {
        block_in_place(|| self.process.wait_for_line("paused"));
        self.process.kill();
    }

    /// Opens an account with so many yuan, and an order of it.
    pub(crate) async fn open(&self, notification: &Notification, yuan: i64) -> Result<(), Error> {
        let body = serde_json::to_string(&(notification, yuan))?;
        let request = Request::post("/orders").header(CONTENT_TYPE, "application/json");
        let answer = Server::try_exchange(self.address, request.body(body)?).await?;
        match answer.status() {
            StatusCode::OK => Ok(()),
            status => Err(format!("the order was not opened: {status} {:?}", answer.body()).into()),
        }
    }

    /// What its books say of an order.
    pub(crate) async fn books(&self, notification: &Notification) -> Result<Books, Error> {
        let request = Request::get(format!("/orders/{}", notification.order_id));
        let answer = Server::try_exchange(self.address, request.body(String::new())?).await?;
        Ok(serde_json::from_slice(answer.body())?)
    }
}
