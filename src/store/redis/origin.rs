//! Where connections come from, and how each begins.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, Pipeline, Value,
    io::tcp::TcpSettings,
};

use super::{
    Failure,
    adapter::{DynConnection, RedisTrouble},
    connection::Wire,
    info::Info,
    refused, reply,
};
use crate::store::{StoreError, StoreErrorKind};

/// Where connections come from.
pub(super) enum Origin {
    /// The server of a URL.
    Url(Client),
    /// The program has one.
    Given(Arc<dyn DynConnection>),
}

impl Origin {
    /// Checks the URL; connects to nothing. With it comes the address, without name and password.
    pub(super) fn url(url: &str) -> Result<(Self, String), StoreError> {
        let info = settings(url)?;
        let address = info.addr().to_string();
        Ok((Self::Url(Client::open(info).map_err(|_| no_url(url))?), address))
    }

    /// Connects, and hears the server's clock before anything else may be sent.
    pub(super) async fn connect(&self) -> Result<Greeting, Failure> {
        let wire = match self {
            Self::Url(client) => {
                // Time limits are ours alone, each round a whole call.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(None)
                    .set_response_timeout(None);
                Wire::Client(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Self::Given(given) => Wire::Given(given.clone()),
        };
        greet(wire).await
    }

    /// Whoever has made the connection is told what became of it.
    pub(super) fn report(&self, trouble: RedisTrouble) {
        if let Self::Given(given) = self {
            given.report(trouble);
        }
    }
}

/// A connection, and the first words over it.
pub(super) struct Greeting {
    pub(super) wire: Wire,
    pub(super) now_ms: u64,
    /// `None` where the server does not say.
    pub(super) info: Option<Info>,
}

async fn greet(wire: Wire) -> Result<Greeting, Failure> {
    let answers = wire.send_all(&greeting()).await?;
    let (now_ms, info) = greeted(answers)?;
    Ok(Greeting { wire, now_ms, info })
}

/// The server's time, and what it says about itself.
pub(super) fn greeting() -> Pipeline {
    let mut commands = Pipeline::with_capacity(2);
    commands.cmd("TIME").add_command(Info::command());
    commands
}

/// What [`greeting`] was answered.
pub(super) fn greeted(answers: Vec<Value>) -> Result<(u64, Option<Info>), Failure> {
    let mut answers = answers.into_iter();
    let now_ms = match answers.next() {
        Some(Value::ServerError(error)) => return Err(Failure::Server(error)),
        time => time.and_then(reply::time_ms).ok_or_else(|| reply::garbled("TIME"))?,
    };
    Ok((now_ms, answers.next().and_then(Info::read)))
}

/// What a URL says, with our own settings.
fn settings(url: &str) -> Result<ConnectionInfo, StoreError> {
    let info = url.into_connection_info().map_err(|_| no_url(url))?;
    let redis = info.redis_settings().clone().set_skip_set_lib_name();
    // Without TCP_NODELAY a claim may wait for the acknowledgement of the one before it.
    let tcp = TcpSettings::default().set_nodelay(true);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
}

/// The parser's own words are not repeated: they may quote the URL, and with it a password.
fn no_url(url: &str) -> StoreError {
    let tls = url.starts_with("rediss:") || url.starts_with("valkeys:");
    let why = if tls { "TLS is not supported yet" } else { "it must look so" };
    StoreError::new(
        StoreErrorKind::Refused,
        format!(
            "this is no URL of a Redis that this build can reach; {why}: \
             redis://user:password@host:6379/0"
        ),
    )
}

/// What a failure says of `address`.
pub(super) fn explain(address: &str, what: &str, failure: Failure) -> StoreError {
    match failure {
        Failure::Store(error) => error,
        Failure::Server(error) => refused::by_server(what, &error),
        Failure::Client(error) => refused::by_client(address, &error),
    }
}
