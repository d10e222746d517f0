//! Where connections come from, and how each begins.

use std::{fmt, path::PathBuf, sync::Arc};

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, Pipeline, Value};

#[cfg(feature = "redis-sentinel")]
use super::sentinel::{Named, Sentinels};
use super::{
    Failure,
    adapter::{DynConnection, RedisTrouble},
    connection::Wire,
    info::Info,
    refused, reply,
    servers::{Target, tcp_settings},
    tls::Tls,
};
use crate::store::StoreError;

/// Where connections come from.
pub(super) enum Origin {
    /// The server of a URL.
    Server { target: Target, tls: Option<Tls> },
    /// Whichever server sentinels name.
    #[cfg(feature = "redis-sentinel")]
    Sentinel(Sentinels),
    /// The program has one.
    Given(Arc<dyn DynConnection>),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(feature = "redis-sentinel")]
impl Place {
    /// The host, or nothing.
    pub(super) fn host(&self) -> &str {
        match self {
            Self::Tcp(host, _) => host,
            Self::Unix(_) => "",
        }
    }
}

/// A connection, and the first words over it.
pub(super) struct Greeting {
    pub(super) wire: Wire,
    pub(super) now_ms: u64,
    /// `None` where the server does not say.
    pub(super) info: Option<Info>,
    /// Which server the sentinels have named.
    #[cfg(feature = "redis-sentinel")]
    pub(super) named: Option<Named>,
}

impl Origin {
    /// Connects, and hears the server's clock before anything else may be sent.
    pub(super) async fn connect(&self) -> Result<Greeting, Failure> {
        match self {
            Self::Server { target, tls } => greet(dial(target, tls.as_ref()).await?).await,
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel(sentinels) => sentinels.connect().await,
            Self::Given(given) => greet(Wire::Given(given.clone())).await,
        }
    }

    /// Whether this connection leads elsewhere than a new one would.
    #[cfg(feature = "redis-sentinel")]
    pub(super) async fn leads_elsewhere(&self, named: Option<&Named>) -> bool {
        match (self, named) {
            (Self::Sentinel(sentinels), Some(named)) => sentinels.name_another(named).await,
            _ => false,
        }
    }

    /// Whoever has made the connection is told what became of it.
    pub(super) fn report(&self, trouble: RedisTrouble) {
        if let Self::Given(given) = self {
            given.report(trouble);
        }
    }
}

/// Time limits are ours alone, each round a whole call.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// Connects and logs in.
pub(super) async fn dial(target: &Target, tls: Option<&Tls>) -> Result<Wire, Failure> {
    #[cfg(feature = "redis-tls")]
    if let (true, Some(tls), Place::Tcp(host, port)) = (target.tls, tls, &target.place) {
        return dial_tls(target, tls, host, *port).await;
    }
    // Without the feature there is none.
    let _ = tls;
    let address = match &target.place {
        Place::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
        Place::Unix(path) => ConnectionAddr::Unix(path.clone()),
    };
    let info = address.into_connection_info()?;
    let info = info.set_tcp_settings(tcp_settings()).set_redis_settings(target.login.clone());
    let client = Client::open(info)?;
    Ok(Wire::Client(client.get_multiplexed_async_connection_with_config(&config()).await?))
}

/// The client is given a stream that is one of TLS already, so that it needs none of its own.
#[cfg(feature = "redis-tls")]
async fn dial_tls(target: &Target, tls: &Tls, host: &str, port: u16) -> Result<Wire, Failure> {
    use redis::aio::MultiplexedConnection;
    let connect = async {
        let stream = tokio::net::TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        tls.wrap(host, stream).await
    };
    let stream = connect.await.map_err(redis::RedisError::from)?;
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&target.login, stream, config()).await?;
    // It ends with the last clone of the connection.
    tokio::spawn(driver);
    Ok(Wire::Client(connection))
}

/// The first words over a connection.
pub(super) async fn greet(wire: Wire) -> Result<Greeting, Failure> {
    let answers = wire.send_all(&greeting()).await?;
    let (now_ms, info) = greeted(answers)?;
    Ok(Greeting {
        wire,
        now_ms,
        info,
        #[cfg(feature = "redis-sentinel")]
        named: None,
    })
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

/// What a failure says of `address`.
pub(super) fn explain(address: &str, what: &str, failure: Failure) -> StoreError {
    match failure {
        Failure::Store(error) => error,
        Failure::Server(error) => refused::by_server(what, &error),
        Failure::Client(error) => refused::by_client(address, &error),
    }
}
