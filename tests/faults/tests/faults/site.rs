//! Servers that share a Redis and a journal, and a client that delivers to them.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use http_body_util::BodyExt;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::block_in_place, time::sleep};
use tower_idempotency::{
    RedisStore, State, Store,
    store::{Cursor, Listed},
};
use tower_idempotency_test_support::{Directory, Process, RedisServer, Signal};

/// Leases that are not to end in a test.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(30);
/// A claim with all its resends, and the call that looks once more.
pub(crate) const CLAIM_WITHIN: Duration = Duration::from_millis(2000);
/// What two busy cores may add to anything.
pub(crate) const SLACK: Duration = Duration::from_millis(2500);
/// Between two deliveries of the same.
const AGAIN_AFTER: Duration = Duration::from_millis(25);
const PREFIX: &str = "faults";

/// How often a load is to be as long as usual.
pub(crate) fn times() -> u32 {
    match std::env::var("FAULTS_LONG") {
        Ok(long) if long != "0" => 6,
        _ => 1,
    }
}

/// A journal, and the settings of the servers that write it.
pub(crate) struct Site {
    directory: Directory,
    pub(crate) lease: Duration,
    pub(crate) rerun: bool,
    orders: bool,
    tokens: bool,
    abrupt: bool,
}

impl Site {
    /// Servers that refuse what is abandoned, with leases that do not end in a test.
    pub(crate) fn new() -> Self {
        let directory = Directory::new();
        Self {
            directory,
            lease: LONG_LEASE,
            rerun: false,
            orders: false,
            tokens: false,
            abrupt: false,
        }
    }

    pub(crate) fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Servers that run again what is abandoned.
    pub(crate) fn rerun(mut self) -> Self {
        self.rerun = true;
        self
    }

    /// Servers to which a delivery is of an `order`, whatever its `id`.
    pub(crate) fn orders(mut self) -> Self {
        self.orders = true;
        self
    }

    /// Servers whose runs need a one-time token.
    pub(crate) fn tokens(mut self) -> Self {
        self.tokens = true;
        self
    }

    /// Servers that wait for the layer alone when they are told to end, not for their connections.
    pub(crate) fn abrupt(mut self) -> Self {
        self.abrupt = true;
        self
    }

    pub(crate) fn server(&self, redis_url: &str) -> Server {
        self.server_with_prefix(redis_url, PREFIX)
    }

    pub(crate) fn server_with_prefix(&self, redis_url: &str, prefix: &str) -> Server {
        let lease = self.lease.as_millis().to_string();
        let journal = self.journal();
        let journal = journal.to_str().expect("temporary directories have names of UTF-8");
        let mut arguments = vec!["--redis", redis_url, "--prefix", prefix, "--journal", journal];
        arguments.extend(["--lease-ms", lease.as_str()]);
        if self.rerun {
            arguments.push("--rerun");
        }
        if self.orders {
            arguments.push("--orders");
        }
        if self.tokens {
            arguments.push("--tokens");
        }
        if self.abrupt {
            arguments.push("--abrupt");
        }
        let process = Process::start(env!("CARGO_BIN_EXE_tower-idempotency-faults"), &arguments);
        let line = block_in_place(|| process.wait_for_line("listening on "));
        let address = line.strip_prefix("listening on ").expect(&line).parse().expect(&line);
        Server { process, address: Address(address) }
    }

    fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    /// All that was run so far.
    pub(crate) fn runs(&self) -> Runs {
        let mut runs = Runs { started: BTreeMap::new(), ended: HashSet::new() };
        for line in fs::read_to_string(self.journal()).unwrap_or_default().lines() {
            let (what, run) = line.split_once(' ').expect(line);
            let words: Vec<_> = run.split(' ').collect();
            let [id, process, attempt, fence, previous] = words[..] else { panic!("{line}") };
            if what == "end" {
                assert!(runs.ended.insert(run.to_owned()), "{line}");
                continue;
            }
            assert_eq!(what, "start", "{line}");
            runs.started.entry(id.to_owned()).or_default().push(Run {
                text: run.to_owned(),
                process: process.parse().expect(line),
                attempt: attempt.parse().expect(line),
                fence: fence.parse().expect(line),
                previous: previous.to_owned(),
            });
        }
        runs
    }
}

/// One run of a handler, as the journal has it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// What the handler answers too.
    pub(crate) text: String,
    pub(crate) process: u32,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) previous: String,
}

/// What the journal has.
pub(crate) struct Runs {
    pub(crate) started: BTreeMap<String, Vec<Run>>,
    ended: HashSet<String>,
}

impl Runs {
    /// How often a key was run.
    pub(crate) fn of(&self, id: &str) -> &[Run] {
        self.started.get(id).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has_ended(&self, run: &Run) -> bool {
        self.ended.contains(&run.text)
    }

    /// The one run of a key that was run once.
    #[track_caller]
    pub(crate) fn only(&self, id: &str) -> Run {
        let [run] = self.of(id) else { panic!("{id} was run {:?}", self.of(id)) };
        run.clone()
    }

    /// Each key was run once, under a grant of its own.
    #[track_caller]
    pub(crate) fn assert_each_once(&self) {
        let mut fences = HashSet::new();
        for (id, runs) in &self.started {
            let run = self.only(id);
            assert_eq!((runs.len(), run.attempt, run.previous.as_str()), (1, 1, "Nothing"), "{id}");
            assert!(run.fence > 0 && fences.insert((id, run.fence)), "{id}");
        }
    }
}

/// A server process.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) address: Address,
}

impl Server {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// How many bytes of memory it has now.
    #[cfg(target_os = "linux")]
    pub(crate) fn resident(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/statm", self.id())).expect("it runs");
        let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
        pages.expect("a number") * 4096
    }

    /// Waits until the handler of this key has been started here.
    pub(crate) fn wait_for_start(&self, id: &str) {
        self.wait_for_line(&format!("started {id}"));
    }

    pub(crate) fn wait_for_line(&self, text: &str) -> String {
        block_in_place(|| self.process.wait_for_line(text))
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Tells it to end: it must end by itself, with nothing left undone.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.wait_for_line("stopped; "), "stopped; 0 running, 0 unsent");
        assert!(block_in_place(|| self.process.wait()), "it ends well");
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) replayed: bool,
    pub(crate) body: String,
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn is_final(&self) -> bool {
        self.status.is_success()
    }

    /// Whether it is a refusal of this kind, such as `outcome_unknown`.
    pub(crate) fn is_refusal(&self, kind: &str) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
            && self.body.contains(&format!("/problems/{kind}/"))
    }

    #[track_caller]
    pub(crate) fn assert_refusal(&self, kind: &str) {
        assert!(self.is_refusal(kind), "{kind} was expected, not {self:?}");
    }
}

/// Where a server listens. Each delivery has a connection of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) SocketAddr);

impl Address {
    /// Delivers; `None` if the connection ended before the answer.
    pub(crate) async fn try_send(self, path: &str, body: &Value) -> Option<Answer> {
        self.try_send_with("", path, body).await
    }

    /// The same with this one-time token, or none.
    pub(crate) async fn try_send_with(
        self,
        token: &str,
        path: &str,
        body: &Value,
    ) -> Option<Answer> {
        let sent = Instant::now();
        let stream = TokioIo::new(TcpStream::connect(self.0).await.ok()?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.ok()?;
        tokio::spawn(connection);
        let request = Request::post(path)
            .header("Host", "localhost")
            .header("Content-Type", "application/json");
        let request = if token.is_empty() { request } else { request.header("X-Once", token) }
            .body(body.to_string())
            .expect("these are all valid");
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(Answer {
            status: head.status,
            replayed: head.headers.contains_key("idempotent-replayed"),
            body: String::from_utf8(body.to_vec()).expect("the server answers text"),
            took: sent.elapsed(),
        })
    }

    /// Delivers once.
    pub(crate) async fn send(self, run: &Value) -> Answer {
        self.try_send("/run", run).await.expect("a server that runs answers")
    }

    /// Asks for something that no rule is for, on the way that a delivery takes: the answer's status, and
    /// how long it took.
    pub(crate) async fn unprotected(self) -> (StatusCode, Duration) {
        let sent = Instant::now();
        let stream = TokioIo::new(TcpStream::connect(self.0).await.expect("it listens"));
        let handshake = hyper::client::conn::http1::handshake(stream).await;
        let (mut sender, connection) = handshake.expect("it speaks HTTP");
        tokio::spawn(connection);
        let request = Request::get("/run").header("Host", "localhost").body(String::new());
        let request = request.expect("these are all valid");
        let answer = sender.send_request(request).await.expect("a server that runs answers");
        (answer.status(), sent.elapsed())
    }

    /// Delivers once a run that takes no time.
    pub(crate) async fn deliver(self, id: &str) -> Answer {
        self.send(&json!({ "id": id })).await
    }

    /// Delivers until the answer is final, or the time is over.
    pub(crate) async fn deliver_until_final(self, run: &Value, within: Duration) -> Answer {
        let until = Instant::now() + within;
        loop {
            let answer = self.send(run).await;
            if answer.is_final() {
                return answer;
            }
            assert!(
                Instant::now() < until,
                "no final answer to {run} within {within:?}: {answer:?}"
            );
            sleep(AGAIN_AFTER).await;
        }
    }

    /// Delivers until the answer is such a refusal; meanwhile it must be one of a run in progress.
    pub(crate) async fn deliver_until_refused(self, id: &str, kind: &str, within: Duration) {
        self.send_until_refused(&json!({ "id": id }), kind, within).await;
    }

    /// The same of any run.
    pub(crate) async fn send_until_refused(self, run: &Value, kind: &str, within: Duration) {
        let until = Instant::now() + within;
        loop {
            let answer = self.send(run).await;
            if answer.is_refusal(kind) {
                return;
            }
            answer.assert_refusal("in_progress");
            assert!(Instant::now() < until, "{run} was not refused as {kind} within {within:?}");
            sleep(AGAIN_AFTER).await;
        }
    }

    /// Lets a held handler go on.
    pub(crate) async fn go(self, id: &str) {
        let told = self.try_send("/go", &json!({ "id": id })).await;
        assert!(told.is_some_and(|told| told.is_final()));
    }
}

/// Every record of the servers.
pub(crate) async fn records(redis: &RedisServer) -> Vec<Listed> {
    let store = RedisStore::lazy(&redis.url()).expect("its own URL is one").prefix(PREFIX);
    let store = store.call_within(Duration::from_secs(5));
    let (mut records, mut seen, mut from) = (Vec::new(), HashSet::new(), Some(Cursor::START));
    while let Some(cursor) = from {
        let page = store.scan(cursor, 500).await.expect("a server that runs can be asked");
        records.extend(page.records.into_iter().filter(|record| seen.insert(record.key)));
        from = page.next;
    }
    records
}

/// The records are those of the runs: each key that was run is completed, by the grant under which it
/// ran last, and nothing is held by anybody.
pub(crate) async fn assert_records_are_of(runs: &Runs, redis: &RedisServer) {
    let records = records(redis).await;
    let mut completed = HashSet::new();
    for record in &records {
        assert!(!record.expires_in.is_zero(), "every record expires: {record:?}");
        match record.state {
            State::Completed => {
                assert!(completed.insert((record.mark.fence.get(), record.attempt)));
            }
            // Another name of one of the others.
            State::Alias => {}
            // Called off: as good as absent.
            State::Released if record.attempt == 0 => {}
            _ => panic!("nobody runs, but there is {record:?}"),
        }
    }
    let last = |runs: &Vec<Run>| runs.last().map(|run| (run.fence, run.attempt)).unwrap();
    let ran: HashSet<_> = runs.started.values().map(last).collect();
    assert_eq!(completed, ran);
}
