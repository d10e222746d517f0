//! Through which connection a record is reached: the one there is, or that of its slot.

use std::sync::Arc;

#[cfg(feature = "redis-cluster")]
use super::cluster::Cluster;
use super::{
    call::{Ask, Call, unreached},
    guard::Guard,
    link::{CONNECT_WITHIN, Link},
    preflight::Accepted,
};
use crate::store::StoreError;

/// One server, or a cluster.
#[derive(Clone)]
pub(super) enum Reach {
    One(Arc<Link>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Arc<Cluster>),
}

impl Reach {
    /// Host and port, without name and password.
    pub(super) fn address(&self) -> &str {
        match self {
            Self::One(link) => link.address(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.address(),
        }
    }

    /// Looks after the records of one more prefix.
    pub(super) fn look_after(&self, guard: &Arc<Guard>) {
        match self {
            Self::One(link) => link.known.look_after(guard),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.look_after(guard),
        }
    }

    /// Changes what is accepted of the servers.
    pub(super) fn accept(&self, change: impl FnOnce(&mut Accepted)) {
        match self {
            Self::One(link) => link.known.accept(change),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.accept(change),
        }
    }

    /// Connects, so that the first call need not.
    pub(super) async fn connect(&self) -> Result<(), StoreError> {
        match self {
            Self::One(link) => match tokio::time::timeout(CONNECT_WITHIN, link.get()).await {
                Ok(connected) => connected.map(drop),
                Err(_) => Err(unreached(link, CONNECT_WITHIN)),
            },
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.connect().await.map(drop),
        }
    }

    /// The primaries; in an order that stays, where they do.
    pub(super) async fn links(&self) -> Result<Vec<Arc<Link>>, StoreError> {
        match self {
            Self::One(link) => Ok(vec![link.clone()]),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// Whether the connection is the program's own.
    pub(super) fn is_given(&self) -> bool {
        match self {
            Self::One(link) => link.is_given(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => false,
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        !matches!(self, Self::One(_))
    }

    /// One call about the record of this name. In a cluster it is made again where it was sent to the
    /// wrong node, which has done nothing then.
    pub(super) async fn call<A: Ask>(
        &self,
        call: &Call<'_>,
        name: impl Into<Vec<u8>> + Send,
        ask: &A,
    ) -> Result<A::Answer, StoreError> {
        match self {
            Self::One(link) => {
                // Only a cluster needs it.
                let _ = name;
                call.make(link, ask).await.map_err(|wrong| wrong.error)
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => {
                Box::pin(async { cluster.call(call, &name.into(), ask).await }).await
            }
        }
    }
}
