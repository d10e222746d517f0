//! One-time tokens over several processes: one use of many, a Redis that forgets, and a process that is
//! killed at each point of an issue and of a use.

use std::{collections::HashSet, time::Duration};

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower_idempotency::State;
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::site::{Address, Answer, SLACK, Server, Site, assert_records_are_of, records};

const LEASE: Duration = Duration::from_millis(1500);

/// What a server answers that was asked for a token.
async fn asked(server: Address, id: &str) -> Answer {
    server.try_send("/token", &json!({ "id": id })).await.expect("a server that runs answers")
}

async fn token(server: Address, id: &str) -> String {
    let answer = asked(server, id).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    assert_eq!(answer.body.len(), 22);
    answer.body
}

async fn use_up(server: Address, token: &str, run: &Value) -> Answer {
    server.try_send_with(token, "/run", run).await.expect("a server that runs answers")
}

#[track_caller]
fn assert_no_such_token(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{answer:?}");
    assert!(answer.body.contains("/problems/token_unknown/"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_uses_of_one_token_at_once_over_two_processes_are_one_run_and_one_answer() {
    let redis = RedisServer::start().await;
    let site = Site::new().tokens();
    let servers = [site.server(&redis.url()), site.server(&redis.url())];
    let token = token(servers[0].address, "key").await;
    let mut uses = JoinSet::new();
    for place in 0..1000 {
        let (server, token) = (servers[place % 2].address, token.clone());
        uses.spawn(async move {
            use_up(server, &token, &json!({ "id": "key", "takes_ms": 300 })).await
        });
    }
    let answers = uses.join_all().await;
    let run = site.runs().only("key");
    assert_eq!((run.attempt, run.previous.as_str()), (1, "Issued"));
    assert!(
        answers.iter().all(|answer| answer.status == StatusCode::OK && answer.body == run.text)
    );
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
    assert_records_are_of(&site.runs(), &redis).await;
    let again = asked(servers[1].address, "key").await;
    assert_eq!((again.status, &*again.body), (StatusCode::CONFLICT, "this is done already"));
    servers.into_iter().for_each(Server::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_one_process_is_that_of_all_and_is_good_in_each_of_them() {
    let redis = RedisServer::start().await;
    let site = Site::new().tokens();
    let (one, other) = (site.server(&redis.url()), site.server(&redis.url()));
    let mut asking = JoinSet::new();
    for place in 0..20 {
        let server = if place % 2 == 0 { &one } else { &other }.address;
        asking.spawn(async move { token(server, "key").await });
    }
    let tokens: HashSet<_> = asking.join_all().await.into_iter().collect();
    let [token] = &Vec::from_iter(tokens)[..] else { panic!("more than one token") };
    assert!(use_up(other.address, token, &json!({ "id": "key" })).await.is_final());
    let again = use_up(one.address, token, &json!({ "id": "key" })).await;
    assert!(again.replayed, "{again:?}");
    // Not for another key, and no other for this one.
    assert_no_such_token(&use_up(one.address, token, &json!({ "id": "other" })).await);
    let made_up = "AAAAAAAAAAAAAAAAAAAAAA";
    assert_no_such_token(&use_up(one.address, made_up, &json!({ "id": "key" })).await);
    let none = one.address.deliver("key").await;
    assert_eq!(none.status, StatusCode::PRECONDITION_REQUIRED, "{none:?}");
    site.runs().only("key");
    assert_eq!(site.runs().started.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_was_flushed_lets_no_outstanding_token_through() {
    let redis = RedisServer::start().await;
    let site = Site::new().lease(LEASE).tokens();
    let server = site.server(&redis.url());
    let mut tokens = Vec::new();
    for number in 0..20 {
        tokens
            .push((token(server.address, &format!("key-{number}")).await, format!("key-{number}")));
    }
    let (used, id) = &tokens[0];
    assert!(use_up(server.address, used, &json!({ "id": id })).await.is_final());
    redis.command(&["FLUSHALL"]).await;
    for (token, id) in &tokens[1..] {
        let answer = use_once_told(server.address, token, &json!({ "id": id })).await;
        assert_no_such_token(&answer);
    }
    // What this process completed within the last minute it may have written again.
    let used = use_once_told(server.address, used, &json!({ "id": id })).await;
    assert!(used.replayed || used.status == StatusCode::FORBIDDEN, "{used:?}");
    assert_eq!(site.runs().started.len(), 1);
    let left = records(&redis).await;
    assert!(left.iter().all(|record| record.state == State::Completed), "{left:?}");
    // A new one is good.
    let token = token(server.address, "key-1").await;
    assert_ne!(token, tokens[1].0);
    assert!(use_once_told(server.address, &token, &json!({ "id": "key-1" })).await.is_final());
}

/// Where it was noticed that records were lost, nothing is said for certain until owners that are alive
/// could write theirs again.
async fn use_once_told(server: Address, token: &str, run: &Value) -> Answer {
    let until = tokio::time::Instant::now() + LEASE + SLACK;
    loop {
        let answer = use_up(server, token, run).await;
        if !answer.is_refusal("store_unavailable") || tokio::time::Instant::now() > until {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_going_on_when_redis_is_flushed_comes_back_over_a_new_token() {
    let redis = RedisServer::start().await;
    // Renewed each half second.
    let site = Site::new().lease(LEASE).tokens();
    let server = site.server(&redis.url());
    let old = token(server.address, "key").await;
    let running = tokio::spawn({
        let (old, server) = (old.clone(), server.address);
        async move { use_up(server, &old, &json!({ "id": "key", "held": true })).await }
    });
    server.wait_for_start("key");
    redis.command(&["FLUSHALL"]).await;
    let new = token(server.address, "key").await;
    assert_ne!(new, old);
    server.wait_for_line("ERROR data lost");
    assert_no_such_token(&use_once_told(server.address, &new, &json!({ "id": "key" })).await);
    server.address.go("key").await;
    let answer = running.await.unwrap();
    assert_eq!(answer.body, site.runs().only("key").text);
    assert!(use_once_told(server.address, &old, &json!({ "id": "key" })).await.replayed);
}

/// A server behind a proxy, which is to die, one that is not, and a token for `key`.
struct Pair {
    redis: RedisServer,
    site: Site,
    proxy: Proxy,
    dies: Server,
    lives: Server,
    token: String,
}

impl Pair {
    async fn new() -> Self {
        let redis = RedisServer::start().await;
        let site = Site::new().lease(LEASE).tokens();
        let proxy = Proxy::to(redis.address()).await;
        let dies = site.server(&proxy.redis_url());
        let lives = site.server(&redis.url());
        // From here on Redis knows the scripts: a command is one request.
        let first = token(dies.address, "first").await;
        assert!(use_up(dies.address, &first, &json!({ "id": "first" })).await.is_final());
        let token = token(lives.address, "key").await;
        Self { redis, site, proxy, dies, lives, token }
    }

    /// Sends the token to the server that dies, and does not wait for what comes back.
    fn send_off(&self, run: Value) {
        let (dies, token) = (self.dies.address, self.token.clone());
        tokio::spawn(async move { dies.try_send_with(&token, "/run", &run).await });
    }

    async fn send_off_and_wait_for_request(&self) {
        let before = self.proxy.counts().requests;
        self.send_off(json!({ "id": "key" }));
        self.proxy.wait_until(|counts| counts.requests > before).await;
    }

    /// Uses the token where nobody died.
    async fn use_up(&self) -> Answer {
        use_up(self.lives.address, &self.token, &json!({ "id": "key" })).await
    }

    /// The token is used up, and nobody knows what for: it is not run, whoever asks.
    async fn assert_unknown(&self) {
        let run = json!({ "id": "key" });
        let until = tokio::time::Instant::now() + LEASE + SLACK;
        let answer = loop {
            let answer = use_up(self.lives.address, &self.token, &run).await;
            if !answer.is_refusal("in_progress") || tokio::time::Instant::now() > until {
                break answer;
            }
        };
        answer.assert_refusal("outcome_unknown");
        let asked = asked(self.lives.address, "key").await;
        assert_eq!(asked.status, StatusCode::CONFLICT);
        assert!(asked.body.contains("not known whether it was done"), "{asked:?}");
        assert_no_such_token(&use_up(self.lives.address, "AAAAAAAAAAAAAAAAAAAAAA", &run).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_killed_before_its_answer_leaves_a_token_that_is_given_out_by_another() {
    let mut pair = Pair::new().await;
    let before = pair.proxy.counts().replies;
    pair.proxy.hold_replies();
    let dies = pair.dies.address;
    tokio::spawn(async move { dies.try_send("/token", &json!({ "id": "other" })).await });
    pair.proxy.wait_until(|counts| counts.replies > before).await;
    pair.dies.kill();
    let issued = |found: &Vec<tower_idempotency::store::Listed>| {
        found.iter().filter(|record| record.state == State::Issued).count()
    };
    // That for `key`, and the one that nobody has.
    assert_eq!(issued(&records(&pair.redis).await), 2);
    let other = token(pair.lives.address, "other").await;
    assert_eq!(issued(&records(&pair.redis).await), 2, "the one that nobody had");
    assert!(use_up(pair.lives.address, &other, &json!({ "id": "other" })).await.is_final());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_its_claim_arrives_the_token_may_be_used() {
    let mut pair = Pair::new().await;
    pair.proxy.hold_requests();
    pair.send_off_and_wait_for_request().await;
    pair.dies.kill();
    pair.proxy.cut().await;
    assert_eq!(token(pair.lives.address, "key").await, pair.token, "it is outstanding");
    let answer = pair.use_up().await;
    assert!(answer.is_final() && !answer.replayed, "{answer:?}");
    pair.site.runs().only("key");
    assert_records_are_of(&pair.site.runs(), &pair.redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_its_claim_and_its_handler_the_token_is_used_up_though_nothing_ran() {
    let mut pair = Pair::new().await;
    let before = pair.proxy.counts().replies;
    pair.proxy.hold_replies();
    pair.send_off(json!({ "id": "key" }));
    pair.proxy.wait_until(|counts| counts.replies > before).await;
    pair.dies.kill();
    pair.assert_unknown().await;
    assert!(pair.site.runs().of("key").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_it_runs_a_consumed_token_the_token_is_refused_and_nothing_runs_again() {
    let mut pair = Pair::new().await;
    pair.send_off(json!({ "id": "key", "held": true }));
    pair.dies.wait_for_start("key");
    pair.dies.kill();
    pair.assert_unknown().await;
    pair.lives.wait_for_line("WARN abandoned");
    let runs = pair.site.runs();
    let run = runs.only("key");
    assert!(!runs.has_ended(&run));
    assert_eq!(run.process, pair.dies.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_its_handler_and_its_completion_the_token_is_refused_too() {
    let mut pair = Pair::new().await;
    pair.send_off(json!({ "id": "key", "held": true }));
    pair.dies.wait_for_start("key");
    pair.proxy.hold_requests();
    pair.dies.address.go("key").await;
    pair.dies.wait_for_line("ended key");
    pair.dies.kill();
    pair.proxy.cut().await;
    pair.assert_unknown().await;
    let runs = pair.site.runs();
    assert!(runs.has_ended(&runs.only("key")));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_its_completion_and_its_response_the_token_gets_the_answer() {
    let mut pair = Pair::new().await;
    pair.send_off(json!({ "id": "key", "held": true }));
    pair.dies.wait_for_start("key");
    pair.proxy.hold_replies();
    pair.dies.address.go("key").await;
    pair.dies.wait_for_line("ended key");
    // Waits for the completion to be carried out.
    assert!(pair.use_up().await.is_final());
    pair.dies.kill();
    let answer = pair.use_up().await;
    assert_eq!((answer.replayed, answer.body), (true, pair.site.runs().only("key").text));
    let asked = asked(pair.lives.address, "key").await;
    assert_eq!((asked.status, &*asked.body), (StatusCode::CONFLICT, "this is done already"));
}
