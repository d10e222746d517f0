//! What the connection to a node knows of the cluster that the node belongs to.

use std::sync::{Arc, Weak};

use super::{again, cluster::Cluster, guard::Guard, info::Info, origin::Place, slot};

/// So many names are tried for a canary: a node with more than a few slots has one of them.
const NAMES_TRIED: u32 = 10_000;

/// A node of a cluster.
pub(super) struct Member {
    cluster: Weak<Cluster>,
    place: Place,
}

impl Member {
    pub(super) fn new(cluster: Weak<Cluster>, place: Place) -> Self {
        Self { cluster, place }
    }

    /// The cluster, while there is somebody who uses it.
    pub(super) fn cluster(&self) -> Option<Arc<Cluster>> {
        self.cluster.upgrade()
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Whether a record of this name is this node's.
    pub(super) fn owns(&self, name: &[u8]) -> bool {
        let Some(cluster) = self.cluster() else { return false };
        let map = cluster.map();
        map.slots.owner(slot::slot(name)) == Some(&self.place)
    }

    /// The canary of this node: the first of all names that is in one of its slots, so that all processes
    /// choose the same. It moves with its slot. Where that leaves this node the next one is chosen, and
    /// where it comes to a node that has one already the later one is forgotten: nobody looks at it.
    pub(super) fn canary(&self, guard: &Guard) -> Option<String> {
        let cluster = self.cluster()?;
        let map = cluster.map();
        let is_mine =
            |name: &str| map.slots.owner(slot::slot(name.as_bytes())) == Some(&self.place);
        // A prefix with a tag keeps all that begins with it in one slot.
        let tried = if slot::has_tag(guard.prefix()) { 1 } else { NAMES_TRIED };
        let mut names = (0..tried).map(|nth| again::canary_name(guard.prefix(), nth));
        let mine = names.find(|name| is_mine(name));
        guard.forget(|name| is_mine(name) && Some(name) != mine.as_deref());
        mine
    }

    /// The node has been met for the first time. Whether it comes after another one, whose last writes it
    /// may not have: then its history of data was that one's. One that came by slots that were moved to it
    /// has a history of its own. Where that is not told it is taken for a successor, unless all of the
    /// cluster is new to us.
    pub(super) fn succeeds(&self, info: Option<&Info>) -> bool {
        let Some(cluster) = self.cluster() else { return false };
        let mut map = cluster.map();
        let histories = info.and_then(|info| Some((info.get("master_replid")?, info)));
        let Some((history, info)) = histories else { return map.version > 1 };
        let before = info.get("master_replid2").unwrap_or_default();
        let succeeds = map.histories.contains(before);
        map.histories.insert(history.to_owned());
        succeeds
    }

    /// The node's history of data may get another name while it goes on: when a replica comes to a primary
    /// that had none for a while. Its successor will name the last one.
    pub(super) fn goes_by(&self, info: &Info) {
        if let (Some(cluster), Some(history)) = (self.cluster(), info.get("master_replid")) {
            cluster.map().histories.insert(history.to_owned());
        }
    }

    /// How many of the slots have a primary.
    pub(super) fn covered(&self) -> usize {
        let Some(cluster) = self.cluster() else { return 0 };
        let map = cluster.map();
        map.slots.covered()
    }
}
