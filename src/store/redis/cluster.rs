//! A cluster: a connection for each primary, and which slot is whose. Nothing is sent again that may have
//! been carried out: only what a node refused because the slot is another's is sent there.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::Value;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    Failure,
    call::{Ask, Call, Redirect},
    guard::Guard,
    link::{CONNECT_WITHIN, Link},
    member::Member,
    origin::{Origin, Place, dial, explain},
    preflight::Accepted,
    reply,
    resp::Command,
    servers::Target,
    slot::{SLOTS, Slots, slot},
    tls::Tls,
};
use crate::store::{StoreError, StoreErrorKind};

/// A call is sent on no more often: nodes that disagree for longer must agree first.
const REDIRECTIONS: usize = 5;
/// Between two redirections after the first: a failover or a move is going on.
const REDIRECTION_PAUSE: Duration = Duration::from_millis(20);
/// Whom to ask about the slots is asked no more often.
const REFRESH_EACH: Duration = Duration::from_millis(200);
/// How long one node may take to say whose the slots are.
const NODE_WITHIN: Duration = Duration::from_millis(400);

/// A cluster.
pub(super) struct Cluster {
    seeds: Vec<Target>,
    tls: Option<Tls>,
    address: String,
    map: Mutex<Map>,
    /// Held by whoever asks whose the slots are, so that one does.
    refreshing: tokio::sync::Mutex<Option<Instant>>,
    /// Whom to ask next.
    next: AtomicUsize,
}

/// What is known of it now.
#[derive(Default)]
pub(super) struct Map {
    pub(super) slots: Slots,
    links: HashMap<Place, Arc<Link>>,
    /// The histories of data that the cluster's nodes had, to know a successor by.
    pub(super) histories: HashSet<String>,
    guards: Vec<Weak<Guard>>,
    accepted: Accepted,
    pub(super) version: u64,
}

impl Cluster {
    pub(super) fn new(seeds: &[Target], tls: Option<Tls>, address: String) -> Arc<Self> {
        Arc::new(Self {
            seeds: seeds.to_vec(),
            tls,
            address,
            map: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
            next: AtomicUsize::new(0),
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn map(&self) -> MutexGuard<'_, Map> {
        // Nothing under the lock can leave it half changed.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn look_after(&self, guard: &Arc<Guard>) {
        let mut map = self.map();
        map.guards.retain(|guard| guard.strong_count() > 0);
        map.guards.push(Arc::downgrade(guard));
        map.links.values().for_each(|link| link.known.look_after(guard));
    }

    pub(super) fn accept(&self, change: impl FnOnce(&mut Accepted)) {
        let mut map = self.map();
        change(&mut map.accepted);
        let accepted = map.accepted.clone();
        map.links.values().for_each(|link| link.known.accept(|known| *known = accepted.clone()));
    }

    /// Connects to all primaries, in the order of their slots.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Vec<Arc<Link>>, StoreError> {
        self.connect_after(0).await
    }

    /// The same, and asks again which they are.
    pub(super) async fn connect_anew(self: &Arc<Self>) -> Result<Vec<Arc<Link>>, StoreError> {
        let seen = self.map().version;
        self.connect_after(seen).await
    }

    async fn connect_after(self: &Arc<Self>, seen: u64) -> Result<Vec<Arc<Link>>, StoreError> {
        let connected = async {
            self.refresh(seen).await?;
            let places = self.map().slots.in_order();
            let links: Vec<_> = places.iter().map(|place| self.link(place)).collect();
            for link in &links {
                link.get().await?;
            }
            Ok(links)
        };
        match timeout(2 * CONNECT_WITHIN, connected).await {
            Ok(connected) => connected,
            Err(_) => Err(self.unreached("not all of its primaries answer")),
        }
    }

    fn unreached(&self, why: &str) -> StoreError {
        let message = format!("no connection to {}: {why}", self.address);
        StoreError::new(StoreErrorKind::Unreachable, message)
    }

    /// One call about the record of this name.
    pub(super) async fn call<A: Ask>(
        self: &Arc<Self>,
        call: &Call<'_>,
        name: &[u8],
        ask: &A,
    ) -> Result<A::Answer, StoreError> {
        let (slot, until) = (slot(name), call.until());
        let left = || until.saturating_duration_since(Instant::now());
        let mut asked = None;
        for nth in 0.. {
            let (place, asking) = match asked.take() {
                Some(place) => (place, true),
                None => (self.owner(slot, until).await?, false),
            };
            let link = self.link(&place);
            let wrong = match call.again(left(), asking).make(&link, ask).await {
                Ok(answer) => return Ok(answer),
                Err(wrong) => wrong,
            };
            match wrong.redirect {
                Some(redirect) if nth < REDIRECTIONS && !left().is_zero() => match redirect {
                    Redirect::Moved(to) => self.moved(slot, to.seen_from(&place)),
                    Redirect::Ask(to) => {
                        let to = to.seen_from(&place);
                        self.inherit(&mut self.map(), &place, &to);
                        asked = Some(to);
                    }
                },
                _ => {
                    // The node may be gone, and its slots another's by now.
                    if !wrong.error.is_garbled() {
                        self.refresh_soon();
                    }
                    return Err(wrong.error);
                }
            }
            if nth > 0 {
                sleep(REDIRECTION_PAUSE.min(left())).await;
            }
        }
        Err(self.unreached("its nodes do not agree"))
    }

    /// Whose the slot is. Asks, if nothing is known.
    async fn owner(self: &Arc<Self>, slot: u16, until: Instant) -> Result<Place, StoreError> {
        for _ in 0..2 {
            let version = {
                let map = self.map();
                if let Some(place) = map.slots.owner(slot) {
                    return Ok(place.clone());
                }
                map.version
            };
            match timeout_at(until, self.refresh(version)).await {
                Ok(refreshed) => refreshed?,
                Err(_) => return Err(self.unreached("nobody says in time whose the slots are")),
            }
        }
        Err(self.unreached(&format!("slot {slot} is nobody's (CLUSTERDOWN)")))
    }

    /// The connection to a node.
    fn link(self: &Arc<Self>, place: &Place) -> Arc<Link> {
        self.link_of(&mut self.map(), place)
    }

    fn link_of(self: &Arc<Self>, map: &mut Map, place: &Place) -> Arc<Link> {
        if let Some(link) = map.links.get(place) {
            return link.clone();
        }
        let target = Target { place: place.clone(), ..self.seeds[0].clone() };
        let link = Link::new(Origin::Server { target, tls: self.tls.clone() }, place.to_string());
        link.known.accept(|known| *known = map.accepted.clone());
        map.guards.iter().filter_map(Weak::upgrade).for_each(|guard| link.known.look_after(&guard));
        link.known.in_cluster(Member::new(Arc::downgrade(self), place.clone()));
        map.links.insert(place.clone(), link.clone());
        link
    }

    /// A node has said whose this slot is now.
    fn moved(self: &Arc<Self>, slot: u16, to: Place) {
        let mut map = self.map();
        if let Some(from) = map.slots.owner(slot).cloned() {
            self.inherit(&mut map, &from, &to);
        }
        map.slots.set(slot, to);
        drop(map);
        // Others will have moved with it.
        self.refresh_soon();
    }

    /// What is missing at one node is missing where its slots are moved to: while nothing is granted at the
    /// one for that, nothing is granted at the other.
    fn inherit(self: &Arc<Self>, map: &mut Map, from: &Place, to: &Place) {
        if from == to {
            return;
        }
        let changed = map.links.get(from).and_then(|link| link.known.changed());
        if let Some(changed) = changed {
            self.link_of(map, to).known.inherits(changed);
        }
    }

    /// All slots anew. Connections to nodes that have none any more are let go.
    fn replace(self: &Arc<Self>, owners: Vec<(u16, u16, Place)>) {
        let mut map = self.map();
        for (from, to) in map.slots.replace(owners) {
            self.inherit(&mut map, &from, &to);
        }
        let Map { slots, links, version, .. } = &mut *map;
        links.retain(|place, _| slots.nodes().contains(place));
        *version += 1;
    }

    /// Each primary may have lost what this process has there.
    pub(super) fn write_again(&self) {
        self.map().links.values().for_each(|link| link.known.write_again());
    }

    /// Connects to the primaries that nobody has asked for yet: a loss is to be noticed there too.
    pub(super) fn keep_all(self: &Arc<Self>) {
        let places = self.map().slots.in_order();
        for place in &places {
            self.link(place).keep();
        }
    }

    /// Asks in the background, unless that is being done.
    fn refresh_soon(self: &Arc<Self>) {
        if self.refreshing.try_lock().is_err() {
            return;
        }
        let (cluster, version) = (Arc::downgrade(self), self.map().version);
        tokio::spawn(async move {
            if let Some(cluster) = cluster.upgrade() {
                let _ = cluster.refresh(version).await;
            }
        });
    }

    /// Asks whose the slots are, unless that was found out since this version.
    async fn refresh(self: &Arc<Self>, seen: u64) -> Result<(), StoreError> {
        let mut last = self.refreshing.lock().await;
        if self.map().version > seen {
            return Ok(());
        }
        if let Some(pause) = last.and_then(|last| REFRESH_EACH.checked_sub(last.elapsed())) {
            sleep(pause).await;
        }
        *last = Some(Instant::now());
        let mut targets: Vec<_> = self.map().slots.nodes().to_vec();
        targets.extend(self.seeds.iter().map(|seed| seed.place.clone()));
        let mut why = String::new();
        for _ in 0..targets.len() {
            // Whoever was asked last may be gone, or behind.
            let place = &targets[self.next.fetch_add(1, Relaxed) % targets.len()];
            match timeout(NODE_WITHIN, self.slots(place)).await {
                Ok(Ok(owners)) => {
                    self.replace(owners);
                    return Ok(());
                }
                Ok(Err(failure)) => {
                    why = explain(&place.to_string(), "CLUSTER SLOTS", failure).to_string();
                }
                Err(_) => why = format!("no answer from {place} within {NODE_WITHIN:?}"),
            }
        }
        Err(self.unreached(&why))
    }

    /// Asks one node whose the slots are.
    async fn slots(&self, place: &Place) -> Result<Vec<(u16, u16, Place)>, Failure> {
        let target = Target { place: place.clone(), ..self.seeds[0].clone() };
        let wire = dial(&target, self.tls.as_ref()).await?;
        owners(wire.send(&Command::new("CLUSTER").arg("SLOTS")).await?, place)
    }
}

/// Whose the slots are, as this node was asked.
pub(super) fn owners(answer: Value, asked: &Place) -> Result<Vec<(u16, u16, Place)>, Failure> {
    let ranges = match answer {
        Value::ServerError(error) => return Err(Failure::Server(error)),
        Value::Array(ranges) => ranges,
        _ => return Err(reply::garbled("CLUSTER SLOTS").into()),
    };
    let owners: Option<Vec<_>> = ranges.iter().map(|range| owner(range, asked)).collect();
    // A node that has just forgotten, or not yet learned, all of them is no use.
    let owners = owners.filter(|owners| !owners.is_empty());
    Ok(owners.ok_or_else(|| reply::garbled("CLUSTER SLOTS"))?)
}

/// A range of slots and its primary; replicas follow and are left alone.
fn owner(range: &Value, asked: &Place) -> Option<(u16, u16, Place)> {
    let Value::Array(fields) = range else { return None };
    let [first, last, Value::Array(node), ..] = &fields[..] else { return None };
    let number = |value| reply::number(value).and_then(|number| u16::try_from(number).ok());
    let (first, last) = (number(first)?, number(last)?);
    if first > last || last >= SLOTS {
        return None;
    }
    let host = match node.first()? {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::Nil => String::new(),
        _ => return None,
    };
    Some((first, last, Place::Tcp(host, number(node.get(1)?)?).seen_from(asked)))
}

impl Place {
    /// A node that does not know its own address names none: it is where it was asked.
    pub(super) fn seen_from(self, asked: &Self) -> Self {
        match (self, asked) {
            (Self::Tcp(host, port), Self::Tcp(known, _)) if host.is_empty() || host == "?" => {
                Self::Tcp(known.clone(), port)
            }
            (place, _) => place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: i64) -> Value {
        Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)])
    }

    fn range(first: i64, last: i64, node: Value) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn a_range_names_its_primary_and_one_without_a_host_is_where_it_was_asked() {
        let asked = Place::Tcp("10.0.0.1".into(), 6379);
        let place = |host: &str, port| Place::Tcp(host.into(), port);
        let read = |value: &Value| owner(value, &asked);
        assert_eq!(read(&range(0, 9, node("n", 7))), Some((0, 9, place("n", 7))));
        assert_eq!(read(&range(0, 9, node("", 7))), Some((0, 9, place("10.0.0.1", 7))));
        assert_eq!(read(&range(0, 9, node("?", 7))), Some((0, 9, place("10.0.0.1", 7))));
        for wrong in [
            range(0, 16_384, node("n", 7)),
            range(9, 0, node("n", 7)),
            range(0, 9, node("n", 70_000)),
            range(0, 9, Value::Nil),
            Value::Nil,
        ] {
            assert_eq!(read(&wrong), None, "{wrong:?}");
        }
    }
}
