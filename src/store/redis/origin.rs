//! Where connections come from, and how each begins.

use std::{fmt, path::PathBuf, sync::Arc};

use redis::Value;
use tokio::net::TcpStream;

#[cfg(feature = "redis-sentinel")]
use super::sentinel::{Named, Sentinels};
use super::{
    Failure,
    adapter::{DynConnection, RedisTrouble},
    connection::Wire,
    info::Info,
    refused, reply,
    resp::Command,
    servers::Target,
    session::{Broken, Session},
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

    /// What to ask oneself where nothing answers: a server without TLS waits for more of what it is told.
    pub(super) fn doubt(&self) -> &'static str {
        let tls = match self {
            Self::Server { target, .. } => target.tls,
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel(sentinels) => sentinels.has_tls(),
            Self::Given(_) => false,
        };
        if tls { "is it there, and does its port speak TLS?" } else { "is it there?" }
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

/// Connects and logs in.
pub(super) async fn dial(target: &Target, tls: Option<&Tls>) -> Result<Wire, Failure> {
    let session = match &target.place {
        Place::Tcp(host, port) => {
            let stream = TcpStream::connect((&host[..], *port)).await.map_err(Broken::from)?;
            // Else a claim may wait for the acknowledgement of the one before it.
            stream.set_nodelay(true).map_err(Broken::from)?;
            match tls.filter(|_| target.tls) {
                #[cfg(feature = "redis-tls")]
                Some(tls) => Session::over(tls.wrap(host, stream).await.map_err(Broken::from)?),
                _ => Session::over(stream),
            }
        }
        #[cfg(unix)]
        Place::Unix(path) => {
            Session::over(tokio::net::UnixStream::connect(path).await.map_err(Broken::from)?)
        }
        #[cfg(not(unix))]
        Place::Unix(_) => {
            let message = "there are no sockets of this kind here".to_owned();
            return Err(Broken::Io(std::io::ErrorKind::Unsupported, message).into());
        }
    };
    for answer in session.send_all(&log_in(target)).await? {
        if let Value::ServerError(error) = answer {
            return Err(Failure::Server(error));
        }
    }
    Ok(Wire::Own(session))
}

/// Who we are, and which database it is.
fn log_in(target: &Target) -> Vec<Command> {
    let (mut commands, login) = (Vec::new(), &target.login);
    if let Some(password) = login.password() {
        let command = Command::new("AUTH");
        commands.push(match login.username() {
            Some(user) => command.arg(user).arg(password),
            None => command.arg(password),
        });
    }
    if login.db() != 0 {
        commands.push(Command::new("SELECT").number(login.db()));
    }
    commands
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
pub(super) fn greeting() -> [Command; 2] {
    [Command::new("TIME"), Info::command()]
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
        Failure::Broken(broken) => refused::by_connection(address, what, &broken),
    }
}
