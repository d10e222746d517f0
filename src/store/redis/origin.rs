//! Where connections come from, and how each begins.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline, Value};
use tokio::net::TcpStream;

use super::{
    Failure,
    adapter::{DynConnection, RedisTrouble},
    connection::Wire,
    info::Info,
    refused, reply,
    session::{Broken, Session},
};
use crate::store::{StoreError, StoreErrorKind};

/// Where connections come from.
pub(super) enum Origin {
    /// The server of a URL.
    Url(Box<ConnectionInfo>),
    /// The program has one.
    Given(Arc<dyn DynConnection>),
}

impl Origin {
    /// Checks the URL; connects to nothing. With it comes the address, without name and password.
    pub(super) fn url(url: &str) -> Result<(Self, String), StoreError> {
        let info = url.into_connection_info().map_err(|_| no_url(url))?;
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Err(no_url(url));
        }
        let address = info.addr().to_string();
        Ok((Self::Url(Box::new(info)), address))
    }

    /// Connects, and hears the server's clock before anything else may be sent.
    pub(super) async fn connect(&self) -> Result<Greeting, Failure> {
        let wire = match self {
            Self::Url(info) => Wire::Own(open(info).await?),
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

/// Connects and logs in.
async fn open(info: &ConnectionInfo) -> Result<Session, Failure> {
    let session = match info.addr() {
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            Session::over(tokio::net::UnixStream::connect(path).await.map_err(Broken::from)?)
        }
        ConnectionAddr::Tcp(host, port) => {
            let stream = TcpStream::connect((&host[..], *port)).await.map_err(Broken::from)?;
            // Else a claim may wait for the acknowledgement of the one before it.
            stream.set_nodelay(true).map_err(Broken::from)?;
            Session::over(stream)
        }
        _ => return Err(no_url("").into()),
    };
    for answer in session.send_all(&log_in(info)).await? {
        if let Value::ServerError(error) = answer {
            return Err(Failure::Server(error));
        }
    }
    Ok(session)
}

/// What a URL says about who we are and which database it is.
fn log_in(info: &ConnectionInfo) -> Pipeline {
    let (mut commands, settings) = (Pipeline::new(), info.redis_settings());
    if let Some(password) = settings.password() {
        let command = commands.cmd("AUTH");
        match settings.username() {
            Some(user) => command.arg(user).arg(password),
            None => command.arg(password),
        };
    }
    if settings.db() != 0 {
        commands.cmd("SELECT").arg(settings.db());
    }
    commands
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
        Failure::Broken(broken) => refused::by_connection(address, what, &broken),
    }
}
