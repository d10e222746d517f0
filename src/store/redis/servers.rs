//! Where a Redis is, and how it is reached: what the program says about it.

use std::{fmt, sync::Arc};

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

#[cfg(feature = "redis-tls")]
use super::tls::RedisTls;
use super::{
    adapter::DynConnection,
    link::Link,
    origin::{Origin, Place},
    reach::Reach,
    tls::Tls,
};
use crate::store::{StoreError, StoreErrorKind};

/// Where a Redis is, and how it is reached: one server, one that sentinels name (feature
/// `redis-sentinel`), or a cluster (feature `redis-cluster`).
///
/// # Example: a primary that three sentinels name
///
/// ```
/// # #[cfg(feature = "redis-sentinel")] {
/// use tower_idempotency::{RedisStore, store::RedisServers};
///
/// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
/// // The primary's name in place of its host, with what is needed to log in to it.
/// let servers = RedisServers::sentinel(sentinels, "redis://shop:secret@mymaster/0")?;
/// let store = RedisStore::of(servers)?.prefix("shop");
/// # let _ = store;
/// # }
/// # Ok::<(), tower_idempotency::StoreError>(())
/// ```
#[derive(Clone)]
pub struct RedisServers {
    kind: Kind,
    #[cfg(feature = "redis-tls")]
    tls: Option<RedisTls>,
}

#[derive(Clone)]
enum Kind {
    One(Target),
    #[cfg(feature = "redis-sentinel")]
    Sentinel {
        sentinels: Vec<Target>,
        primary: Target,
    },
    #[cfg(feature = "redis-cluster")]
    Cluster(Vec<Target>),
}

/// What a URL says.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) place: Place,
    pub(super) login: RedisConnectionInfo,
    pub(super) tls: bool,
}

impl RedisServers {
    fn of(kind: Kind) -> Self {
        Self {
            kind,
            #[cfg(feature = "redis-tls")]
            tls: None,
        }
    }

    /// The server of this URL: `redis://user:password@host:6379/0`, or `rediss://` with feature
    /// `redis-tls`.
    ///
    /// # Errors
    ///
    /// When it is no such URL.
    pub fn url(url: &str) -> Result<Self, StoreError> {
        Ok(Self::of(Kind::One(Target::parse(url)?)))
    }

    /// The primary that these sentinels name: `redis://sentinel:26379` each, and for the primary
    /// `redis://user:password@name/0` with its name in place of a host. `rediss://` as well, for either.
    ///
    /// They are asked each time it is connected to, and each second whether it is the primary still; of
    /// several answers the one of the newest epoch counts. What they name must say that it is a primary.
    ///
    /// # Errors
    ///
    /// When there is none, or one of them is no such URL.
    #[cfg(feature = "redis-sentinel")]
    pub fn sentinel<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        primary: &str,
    ) -> Result<Self, StoreError> {
        let sentinels = targets(sentinels)?;
        let primary = Target::parse(primary)?;
        if !matches!(primary.place, Place::Tcp(..)) {
            return Err(no_url(false));
        }
        Ok(Self::of(Kind::Sentinel { sentinels, primary }))
    }

    /// The cluster that one of these nodes belongs to: `redis://user:password@host:6379` each. The others
    /// are found through it, and log-in and TLS of the first are those of all.
    ///
    /// # Errors
    ///
    /// When there is none, or one of them is no such URL.
    #[cfg(feature = "redis-cluster")]
    pub fn cluster<'a>(nodes: impl IntoIterator<Item = &'a str>) -> Result<Self, StoreError> {
        Ok(Self::of(Kind::Cluster(targets(nodes)?)))
    }

    /// Whom to trust, and who to be, in place of what the system trusts and nobody. Counts for the
    /// `rediss://` among the URLs.
    #[cfg(feature = "redis-tls")]
    #[must_use]
    pub fn tls(mut self, tls: RedisTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Host and port, without name and password.
    pub(super) fn address(&self) -> String {
        match &self.kind {
            Kind::One(target) => target.place.to_string(),
            #[cfg(feature = "redis-sentinel")]
            Kind::Sentinel { primary, .. } => format!("{} of its sentinels", primary.place.host()),
            #[cfg(feature = "redis-cluster")]
            Kind::Cluster(nodes) => format!("the cluster of {}", nodes[0].place),
        }
    }

    /// What TLS is made of, where one of the URLs wants it.
    #[cfg_attr(not(feature = "redis-tls"), expect(clippy::unused_self, reason = "with it, not"))]
    fn tls_of(&self, wanted: bool) -> Result<Option<Tls>, StoreError> {
        #[cfg(feature = "redis-tls")]
        if wanted {
            return self.tls.clone().unwrap_or_default().connector().map(Some);
        }
        debug_assert!(!wanted, "without the feature no such URL is taken");
        Ok(None)
    }

    /// Through which connections records are reached.
    pub(super) fn reach(&self) -> Result<Reach, StoreError> {
        let origin = match &self.kind {
            Kind::One(target) => {
                Origin::Server { target: target.clone(), tls: self.tls_of(target.tls)? }
            }
            #[cfg(feature = "redis-sentinel")]
            Kind::Sentinel { sentinels, primary } => {
                let wanted = primary.tls || sentinels.iter().any(|sentinel| sentinel.tls);
                let tls = self.tls_of(wanted)?;
                Origin::Sentinel(super::sentinel::Sentinels::new(sentinels, primary, tls))
            }
            #[cfg(feature = "redis-cluster")]
            Kind::Cluster(nodes) => {
                let tls = self.tls_of(nodes[0].tls)?;
                return Ok(Reach::Cluster(super::cluster::Cluster::new(
                    nodes,
                    tls,
                    self.address(),
                )));
            }
        };
        Ok(Reach::One(Link::new(origin, self.address())))
    }
}

impl Origin {
    /// The program's own connection.
    pub(super) fn given(connection: impl super::RedisConnection) -> Self {
        let connection: Arc<dyn DynConnection> = Arc::new(connection);
        Self::Given(connection)
    }
}

impl fmt::Debug for RedisServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisServers").field("address", &self.address()).finish_non_exhaustive()
    }
}

#[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
fn targets<'a>(urls: impl IntoIterator<Item = &'a str>) -> Result<Vec<Target>, StoreError> {
    let targets = urls.into_iter().map(Target::parse).collect::<Result<Vec<_>, _>>()?;
    if targets.is_empty() {
        let message = "there is not one URL: name at least one server";
        return Err(StoreError::new(StoreErrorKind::Refused, message));
    }
    Ok(targets)
}

impl Target {
    /// Checks the URL; connects to nothing.
    fn parse(url: &str) -> Result<Self, StoreError> {
        if let Some(instead) = of_many(url) {
            return Err(StoreError::new(StoreErrorKind::Refused, instead));
        }
        // Read as one without TLS, so that it needs none of the client's own TLS.
        let plain = ["rediss://", "valkeys://"].into_iter().find_map(|tls| url.strip_prefix(tls));
        let tls = plain.is_some();
        // A fragment would switch the verification off: that is no TLS.
        if tls && (cfg!(not(feature = "redis-tls")) || url.contains('#')) {
            return Err(no_url(true));
        }
        let plain = plain.map(|rest| format!("redis://{rest}"));
        let info = plain.as_deref().unwrap_or(url).into_connection_info();
        let info = info.map_err(|_| no_url(tls))?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Place::Tcp(host.clone(), *port),
            ConnectionAddr::Unix(path) if !tls => Place::Unix(path.clone()),
            _ => return Err(no_url(tls)),
        };
        let login = info.redis_settings().clone();
        Ok(Self { place, login, tls })
    }
}

/// Other clients have URLs for sentinels and clusters; what to say here in place of one. Nothing of it is
/// repeated: there may be a password in it.
fn of_many(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let (_, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let sentinel = "RedisStore::of(RedisServers::sentinel(..)), with redis://host:26379 for each sentinel and \
                    redis://user:password@name/0 for the primary, its name in place of a host";
    let cluster = "RedisStore::of(RedisServers::cluster(..)), with redis://user:password@host:6379 for each node that is \
                   known";
    let without = |feature, has| match has {
        true => String::new(),
        false => format!(" (feature {feature}, which this build does not have)"),
    };
    let sentinel =
        sentinel.to_owned() + &without("redis-sentinel", cfg!(feature = "redis-sentinel"));
    let cluster = cluster.to_owned() + &without("redis-cluster", cfg!(feature = "redis-cluster"));
    let scheme = scheme.to_ascii_lowercase();
    if scheme.contains("sentinel") {
        Some(format!("sentinels have no URL of their own here: use {sentinel}"))
    } else if scheme.contains("cluster") {
        Some(format!("a cluster has no URL of its own here: use {cluster}"))
    } else if hosts.contains(',') {
        Some(format!(
            "this URL names several hosts, and each needs one of its own: for a cluster use {cluster}; \
             for sentinels use {sentinel}"
        ))
    } else {
        None
    }
}

/// The parser's own words are not repeated: they may quote the URL, and with it a password.
fn no_url(tls: bool) -> StoreError {
    let why = match tls {
        true if cfg!(feature = "redis-tls") => "with TLS it must look so, without a fragment",
        true => "TLS needs the feature redis-tls",
        false => "it must look so",
    };
    let scheme = if tls && cfg!(feature = "redis-tls") { "rediss" } else { "redis" };
    StoreError::new(
        StoreErrorKind::Refused,
        format!(
            "this is no URL of a Redis that this build can reach; {why}: \
             {scheme}://user:password@host:6379/0"
        ),
    )
}
