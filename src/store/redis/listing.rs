//! Listing a cluster: node after node, and those again that keys have come to since they were listed. A
//! record that moves to a node that was done would be missing else, and each is to be listed that is there
//! all the while.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use bytes::Bytes;
use redis::Value;

use super::{
    Failure, RedisStore,
    call::{Ask, Call},
    cluster::{Cluster, owners},
    info::Info,
    lane::Lane,
    link::Link,
    origin::Place,
    reply::{decimal, garbled},
    resp::Command,
};
use crate::store::{Cursor, Page, StoreError, StoreErrorKind};

/// A node is listed no more often: slots that move for longer must come to rest first.
const TIMES_AT_MOST: u64 = 10;

/// How far a listing has come. It is what the cursor says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listing {
    /// The nodes that are done, and last the one that is being listed.
    stops: Vec<Stop>,
    /// Where to go on at the last of them, if it is not done.
    from: Option<Cursor>,
}

/// A node, by its address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stop {
    place: String,
    /// What was so before it was listed: as long as that is so, no key has come to it.
    mark: u64,
    /// How often it was listed.
    times: u64,
}

/// The next page.
pub(super) async fn page(
    store: &RedisStore,
    cluster: &Arc<Cluster>,
    from: &Cursor,
    at_most: usize,
) -> Result<Page, StoreError> {
    let mut listing = Listing::read(from).ok_or_else(|| garbled("scan"))?;
    let links = cluster.connect().await?;
    let going_on = listing.from.take().and_then(|from| Some((from, listing.current(&links)?)));
    let (from, link) = match going_on {
        Some(going_on) => going_on,
        None => match listing.next(store, cluster, links).await? {
            Some(link) => (Cursor::START, link),
            None => return Ok(Page::new(Vec::new(), None)),
        },
    };
    let mut page = store.page(&link, &from, at_most).await?;
    listing.from = page.next.take();
    page.next = Some(listing.cursor());
    Ok(page)
}

impl Listing {
    /// The node that is being listed, if it is one of the cluster still. Another one has its slots else.
    fn current(&self, links: &[Arc<Link>]) -> Option<Arc<Link>> {
        let place = &self.stops.last()?.place;
        links.iter().find(|link| link.address() == place).cloned()
    }

    /// The node that is to be listed next; none at the end.
    async fn next(
        &mut self,
        store: &RedisStore,
        cluster: &Arc<Cluster>,
        links: Vec<Arc<Link>>,
    ) -> Result<Option<Arc<Link>>, StoreError> {
        let is_new =
            |link: &&Arc<Link>| !self.stops.iter().any(|stop| stop.place == link.address());
        if let Some(link) = links.iter().find(is_new) {
            self.begin(link, mark(store, link).await?)?;
            return Ok(Some(link.clone()));
        }
        // All are done. Whichever key has moved since came to a node after its mark was taken, or to one that
        // is no stop yet.
        for link in cluster.connect_anew().await? {
            let now = mark(store, &link).await?;
            let known = self.stops.iter().find(|stop| stop.place == link.address());
            if known.is_none_or(|stop| stop.mark != now) {
                self.begin(&link, now)?;
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    fn begin(&mut self, link: &Link, mark: u64) -> Result<(), StoreError> {
        let known = self.stops.iter().position(|stop| stop.place == link.address());
        let before = known.map(|nth| self.stops.remove(nth).times).unwrap_or_default();
        if before == TIMES_AT_MOST {
            let message = "slots of the cluster move all the while, so that records may be missing from \
                           this list: list again when they have come to rest";
            return Err(StoreError::new(StoreErrorKind::Suspended, message));
        }
        let place = link.address().to_owned();
        self.stops.push(Stop { place, mark, times: before + 1 });
        Ok(())
    }

    /// `FROM PLACE=MARK=TIMES PLACE=MARK=TIMES ...`, with `-` where the last node is done.
    fn cursor(&self) -> Cursor {
        let mut text = match &self.from {
            Some(from) => String::from_utf8_lossy(from.as_bytes()).into_owned(),
            None => "-".to_owned(),
        };
        for Stop { place, mark, times } in &self.stops {
            text += &format!(" {place}={mark}={times}");
        }
        Cursor::from_bytes(Bytes::from(text))
    }

    /// `None` of what is no such cursor.
    fn read(cursor: &Cursor) -> Option<Self> {
        if *cursor == Cursor::START {
            return Some(Self::default());
        }
        let mut words = std::str::from_utf8(cursor.as_bytes()).ok()?.split(' ');
        let from = match words.next()? {
            "-" => None,
            from => {
                decimal(from.as_bytes())?;
                Some(Cursor::from_bytes(Bytes::copy_from_slice(from.as_bytes())))
            }
        };
        let stops = words.map(|word| {
            let mut parts = word.split('=');
            let place = parts.next()?.to_owned();
            let mut number = || decimal(parts.next()?.as_bytes());
            Some(Stop { place, mark: number()?, times: number()? })
        });
        let stops = stops.collect::<Option<Vec<_>>>()?;
        (!stops.is_empty()).then_some(Self { stops, from })
    }
}

/// What changes when a key comes to this node from another: how many it was sent, which slots it has, and
/// which process it is, since another one goes through its keys in another order.
async fn mark(store: &RedisStore, link: &Arc<Link>) -> Result<u64, StoreError> {
    let Some(place) = link.known.place() else { return Ok(0) };
    let told = Call::new("INFO", store.call_within).make(link, &Told(place)).await;
    let told = told.map_err(|wrong| wrong.error)?;
    // The same in all processes of one build; another build only lists a node once more.
    let mut hasher = DefaultHasher::new();
    told.hash(&mut hasher);
    Ok(hasher.finish())
}

/// The run id, how many keys were sent, and the slots that the node itself knows to have: others may not have
/// heard of it yet. Where `INFO` is refused its slots alone tell.
struct Told(Place);

impl Ask for Told {
    type Answer = (Option<String>, u64, Vec<(u16, u16)>);

    async fn ask(&self, lane: &Lane<'_>) -> Result<Self::Answer, Failure> {
        // One section each, since versions before 7.0 take only one.
        let info = |section| Command::new("INFO").arg(section);
        let slots = Command::new("CLUSTER").arg("SLOTS");
        let answers = lane.send_all(&[info("server"), info("commandstats"), slots]).await?;
        let [server, stats, slots] =
            <[Value; 3]>::try_from(answers).map_err(|_| garbled("CLUSTER SLOTS"))?;
        let slots = owners(slots, &self.0)?.into_iter();
        let own = slots.filter(|(.., place)| *place == self.0);
        let own = own.map(|(first, last, _)| (first, last)).collect();
        let run_id = Info::read(server).and_then(|info| info.get("run_id").map(str::to_owned));
        let sent = Info::read(stats).as_ref().map(sent).unwrap_or_default();
        Ok((run_id, sent, own))
    }
}

/// How many keys the node was sent, or has sent: the node that those went to may have no slot yet, and is none
/// that is listed before it has.
fn sent(stats: &Info) -> u64 {
    let calls = |command: &str| {
        let stats = stats.get(command)?.strip_prefix("calls=")?;
        stats.split(',').next()?.parse::<u64>().ok()
    };
    let commands = ["cmdstat_restore", "cmdstat_restore-asking", "cmdstat_migrate"];
    commands.into_iter().filter_map(calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_says_how_far_it_has_come_and_another_stores_is_none() {
        let stop = |place: &str, mark, times| Stop { place: place.to_owned(), mark, times };
        for from in [None, Some(Cursor::from_bytes(Bytes::from_static(b"17")))] {
            let stops = vec![stop("10.0.0.1:6379", u64::MAX, 1), stop("fe80::1:6379", 0, 3)];
            let listing = Listing { stops, from };
            assert_eq!(Listing::read(&listing.cursor()), Some(listing));
        }
        assert_eq!(Listing::read(&Cursor::START), Some(Listing::default()));
        for wrong in
            ["17", "-", "x a:1=2=3", "0 a:1=2", "0 a:1=x=1", "0 a:1=1=", "+1 a:1=1=1", "0  "]
        {
            let cursor = Cursor::from_bytes(Bytes::from_static(wrong.as_bytes()));
            assert_eq!(Listing::read(&cursor), None, "{wrong}");
        }
    }

    #[test]
    fn keys_that_were_sent_are_counted_by_the_commands_that_send_them() {
        let stats = "cmdstat_restore-asking:calls=7,usec=1\r\ncmdstat_set:calls=9,usec=1\r\n\
                     cmdstat_migrate:calls=2,usec=1\r\n";
        assert_eq!(sent(&Info::of(stats)), 9);
        assert_eq!(sent(&Info::of("")), 0);
    }
}
