//! How many commands, and how many writes, a transition costs.

use std::{collections::BTreeMap, time::Duration};

use tower_idempotency::{
    RedisStore, Store,
    store::{Alias, Claim, Claimed, Kept},
};
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::support::{HOLD, Value, claim, completed, granted, kept, new_key};

/// Calls of each command that came from clients: a command that a script runs is counted by the
/// server too, and is left out here.
pub(crate) async fn calls(server: &RedisServer) -> BTreeMap<String, u64> {
    let Value::BulkString(stats) = server.command(&["INFO", "commandstats"]).await else {
        panic!("no commandstats");
    };
    let stats = String::from_utf8(stats).expect("INFO is text");
    let from_clients = ["eval", "evalsha", "script|load", "ping", "multi", "exec", "select"];
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let (count, _) = rest.split_once(',')?;
        from_clients.contains(&name).then(|| (name.to_owned(), count.parse().expect("a count")))
    };
    stats.lines().filter_map(line).collect()
}

struct Measured {
    server: RedisServer,
    proxy: Proxy,
    store: RedisStore,
}

impl Measured {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        let proxy = Proxy::to(server.address()).await;
        let store = RedisStore::connect(&proxy.redis_url()).await.expect("the proxy forwards");
        // The server learns every script that is measured.
        let mut asked = claim(new_key());
        asked.alias = Some(Alias::new(new_key(), HOLD));
        let grant = granted(store.claim(asked).await);
        store.complete(&grant, kept("warm")).await.expect("stored");
        Self { server, proxy, store }
    }

    /// What `transition` answers, with the commands and the writes it cost.
    async fn cost<T>(
        &self,
        transition: impl Future<Output = T>,
    ) -> (T, BTreeMap<String, u64>, usize) {
        self.server.command(&["CONFIG", "RESETSTAT"]).await;
        let before = self.proxy.counts().requests;
        let answer = transition.await;
        (answer, calls(&self.server).await, self.proxy.counts().requests - before)
    }
}

fn only(command: &str, calls: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(command.to_owned(), calls)])
}

#[tokio::test]
async fn a_claim_a_completion_and_a_replay_cost_one_command_each() {
    let measured = Measured::new().await;
    let store = &measured.store;
    let (answer, calls, writes) = measured.cost(store.claim(claim(new_key()))).await;
    let grant = granted(answer);
    assert_eq!((calls, writes), (only("evalsha", 1), 1));
    let (answer, calls, writes) = measured.cost(store.complete(&grant, kept("done"))).await;
    assert!(answer.unwrap().is_stored());
    assert_eq!((calls, writes), (only("evalsha", 1), 1));
    let (answer, calls, writes) = measured.cost(store.claim(claim(grant.key))).await;
    assert_eq!(completed(answer), b"done");
    assert_eq!((calls, writes), (only("evalsha", 1), 1));
}

#[tokio::test]
async fn a_long_answer_does_not_pass_through_a_script_when_it_is_replayed() {
    let measured = Measured::new().await;
    let store = &measured.store;
    for (length, trips) in [(16 * 1024 - 1, 1), (16 * 1024, 2), (1024 * 1024, 2)] {
        let payload: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        let grant = granted(store.claim(claim(new_key())).await);
        let stored = Kept::new(payload.clone().into(), Duration::from_secs(60));
        assert!(store.complete(&grant, stored).await.unwrap().is_stored());
        let (answer, calls, writes) = measured.cost(store.claim(claim(grant.key))).await;
        assert!(completed(answer) == payload);
        assert_eq!((calls, writes), (only("evalsha", 1), trips), "{length}");
    }
}

#[tokio::test]
async fn a_claim_with_an_alias_costs_two_commands_in_one_write() {
    let measured = Measured::new().await;
    let mut asked = claim(new_key());
    asked.alias = Some(Alias::new(new_key(), HOLD));
    let (answer, calls, writes) = measured.cost(measured.store.claim(asked)).await;
    granted(answer);
    assert_eq!((calls, writes), (only("evalsha", 2), 1));
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_told_them_in_the_same_call() {
    let measured = Measured::new().await;
    let store = &measured.store;
    measured.server.command(&["SCRIPT", "FLUSH"]).await;
    let mut asked = claim(new_key());
    asked.alias = Some(Alias::new(new_key(), HOLD));
    let alias = asked.alias.expect("just set").key;
    let (answer, calls, _) = measured.cost(store.claim(asked)).await;
    let grant = granted(answer);
    assert_eq!(calls, BTreeMap::from([("eval".to_owned(), 2), ("evalsha".to_owned(), 2)]));
    let bound = store.claim(claim(alias)).await;
    assert!(matches!(bound, Ok(Claimed::AliasOf(key)) if key == grant.key), "{bound:?}");

    measured.server.command(&["SCRIPT", "FLUSH"]).await;
    let (answer, calls, _) = measured.cost(store.complete(&grant, kept("done"))).await;
    assert!(answer.unwrap().is_stored());
    assert_eq!(calls, BTreeMap::from([("eval".to_owned(), 1), ("evalsha".to_owned(), 1)]));
}

#[tokio::test]
async fn one_script_of_two_unknown_still_binds_before_it_claims() {
    let measured = Measured::new().await;
    let store = &measured.store;
    measured.server.command(&["SCRIPT", "FLUSH"]).await;
    // The server learns claim again, and not bind: the claim of the pair is granted at once.
    granted(store.claim(claim(new_key())).await);
    let mut asked: Claim = claim(new_key());
    let alias = new_key();
    asked.alias = Some(Alias::new(alias, HOLD));
    let grant = granted(store.claim(asked.clone()).await);
    assert_eq!(grant.attempt, 1);
    assert_eq!(granted(store.claim(asked).await).fence, grant.fence);
    assert!(matches!(store.claim(claim(alias)).await, Ok(Claimed::AliasOf(_))));
}

#[tokio::test]
async fn a_look_with_an_alias_tells_what_is_there_and_binds_nothing() {
    let measured = Measured::new().await;
    let store = &measured.store;
    let look = |key, alias| {
        let mut look = claim(key);
        look.within = Duration::ZERO;
        look.alias = Some(Alias::new(alias, HOLD));
        look
    };
    let (key, alias) = (new_key(), new_key());
    let seen = store.claim(look(key, alias)).await;
    assert!(matches!(seen, Ok(Claimed::Free)), "{seen:?}");
    granted(store.claim(claim(alias)).await);
    let seen = store.claim(look(key, alias)).await;
    let taken = Claimed::DeliveryTaken(tower_idempotency::State::InProgress);
    assert_eq!(format!("{:?}", seen.unwrap()), format!("{taken:?}"));
}
