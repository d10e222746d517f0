//! The process that makes load does what it is ordered, and no more: a figure would be worth nothing if
//! it opened connections anew, sent something else, or outlived the bench.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{Router, extract::Request, http::StatusCode, serve::ListenerExt};
use tokio::{net::TcpListener, runtime::Runtime};
use tower_idempotency_benches::{
    app,
    cell::Workload,
    order::{Order, Told},
};

/// A server of a runtime of its own, which counts.
struct Server {
    address: String,
    connections: Arc<AtomicUsize>,
    keys: Arc<Mutex<Vec<Option<String>>>>,
    _runtime: Runtime,
}

impl Server {
    fn start(status: StatusCode) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("there are resources");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (connections, keys) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (opened, asked) = (connections.clone(), keys.clone());
        let app = Router::new().fallback(async move |request: Request| {
            let key = request.headers().get(app::KEY);
            let key = key.map(|key| key.to_str().expect("keys are text").to_owned());
            asked.lock().expect("no holder panics").push(key);
            (status, "answer")
        });
        let listener = listener.tap_io(move |_| {
            opened.fetch_add(1, SeqCst);
        });
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { address, connections, keys, _runtime: runtime }
    }
}

struct Load {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Load {
    fn start(server: &str, connections: usize) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tower-idempotency-benches"))
            .args(["--load", server, "--tasks", &connections.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cargo has built the bench");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { orders: child.stdin.take(), child, answers }
    }

    /// The line that it answers; empty where it has ended instead.
    fn order(&mut self, order: &str) -> String {
        let orders = self.orders.as_mut().expect("its stdin is open");
        writeln!(orders, "{order}").expect("it reads");
        let mut told = String::new();
        self.answers.read_line(&mut told).expect("it writes text");
        told
    }

    /// Waits until it has ended by itself: whether it is content, and what it said of it.
    fn ended(mut self) -> (bool, String) {
        let by = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match self.child.try_wait().expect("it is ours") {
                Some(status) => break status,
                None if Instant::now() > by => {
                    let _ = self.child.kill();
                    panic!("it did not end by itself");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().expect("it is piped");
        stderr.read_to_string(&mut said).expect("it says text");
        (status.success(), said)
    }
}

#[test]
fn it_sends_what_it_is_ordered_over_connections_that_it_keeps() {
    let server = Server::start(StatusCode::CREATED);
    let mut load = Load::start(&server.address, 3);
    let orders = [
        Order { workload: Workload::First, run: 7, from: 5, count: 20 },
        Order { workload: Workload::Replay, run: 7, from: 60, count: 10 },
        Order { workload: Workload::PassThrough, run: 7, from: 0, count: 4 },
    ];
    for order in orders {
        let told: Told = load.order(&order.to_string()).parse().expect("it answers each order");
        assert_eq!((told.good, told.replays), (order.count, 0));
        assert_eq!(told.bytes, order.count * "answer".len() as u64);
        let mut asked = std::mem::take(&mut *server.keys.lock().expect("no holder panics"));
        let mut ordered: Vec<_> = order.keys().collect();
        asked.sort();
        ordered.sort();
        assert_eq!(asked, ordered);
    }
    assert_eq!(server.connections.load(SeqCst), 3);
}

#[test]
fn an_answer_that_is_not_as_it_should_be_is_not_counted_as_good() {
    let server = Server::start(StatusCode::CONFLICT);
    let mut load = Load::start(&server.address, 2);
    let told: Told = load.order("first 7 0 6").parse().expect("it answers each order");
    assert_eq!(told.good, 0);
    assert_eq!(server.keys.lock().expect("no holder panics").len(), 6);
}

#[test]
fn it_ends_with_its_stdin_and_so_with_the_bench() {
    let server = Server::start(StatusCode::CREATED);
    let mut load = Load::start(&server.address, 2);
    assert!(!load.order("first 7 0 6").is_empty());
    drop(load.orders.take());
    assert_eq!(load.ended(), (true, String::new()));
}

#[test]
fn what_it_cannot_do_it_says_and_ends() {
    let server = Server::start(StatusCode::CREATED);
    let mut load = Load::start(&server.address, 2);
    assert_eq!(load.order("first 7 0 6000000000"), "");
    let (content, said) = load.ended();
    assert!(!content && said.contains("`first 7 0 6000000000` is no order"), "{said}");
    assert!(server.keys.lock().expect("no holder panics").is_empty());

    // Nobody can listen there.
    let (content, said) = Load::start("127.0.0.1:0", 1).ended();
    assert!(!content && !said.is_empty());
}
