//! A TCP proxy that breaks connections on command, at the moment a test wants.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
    time::sleep,
};

/// Forwards to one server. Ends, with all its connections, when it is dropped.
///
/// What is forwarded in one piece counts as one request or one reply: a test that counts sends one
/// after the other.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    faults: Arc<Faults>,
    listening: JoinHandle<()>,
}

#[derive(Debug)]
struct Faults {
    server: Mutex<SocketAddr>,
    plan: Mutex<Plan>,
    /// Changed whenever the plan is: whoever holds something back looks again.
    changed: watch::Sender<()>,
    /// Raised by one to cut all connections.
    cuts: watch::Sender<u64>,
    counts: watch::Sender<Counts>,
    /// The connections that are open, each by how many there were with it.
    open: Mutex<BTreeSet<usize>>,
}

#[derive(Debug, Default)]
struct Plan {
    refuse: bool,
    black_hole: bool,
    hold_requests: bool,
    hold_replies: bool,
    delay_replies: Duration,
    swallow_replies: usize,
    cut_at_reply: bool,
    send_twice: usize,
}

/// What has gone through so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted and forwarded.
    pub connections: usize,
    /// Those of them that are open.
    pub open: usize,
    /// Connections cut as soon as they were there.
    pub refused: usize,
    /// Pieces that came from clients.
    pub requests: usize,
    /// Pieces that came from the server.
    pub replies: usize,
}

enum Do {
    Forward,
    Drop,
    Wait,
    Cut,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `server`.
    ///
    /// # Panics
    ///
    /// When it cannot listen.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("127.0.0.1 has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let faults = Arc::new(Faults {
            server: Mutex::new(server),
            plan: Mutex::default(),
            changed: watch::Sender::new(()),
            cuts: watch::Sender::new(0),
            counts: watch::Sender::default(),
            open: Mutex::default(),
        });
        let listening = tokio::spawn(listen(listener, faults.clone()));
        Self { address, faults, listening }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a Redis behind it.
    pub fn redis_url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Leads new connections to another server: what was this one's address is that one's now.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.faults.server.lock().expect("no holder of the address panics") = server;
    }

    /// Forwards faithfully again, and lets go of what is held back.
    pub fn heal(&self) {
        self.plan(|plan| *plan = Plan::default());
    }

    /// Cuts all connections, and waits until they are gone with what they held back. There may be new
    /// ones by then.
    pub async fn cut(&self) {
        let last = self.counts().connections;
        self.faults.cuts.send_modify(|cuts| *cuts += 1);
        self.wait_until(|_| self.faults.open().range(..=last).next().is_none()).await;
    }

    /// Cuts new connections as soon as they are there.
    pub fn refuse(&self) {
        self.plan(|plan| plan.refuse = true);
    }

    /// Accepts and reads everything and forwards nothing, either way.
    pub fn black_hole(&self) {
        self.plan(|plan| plan.black_hole = true);
    }

    /// Holds requests back until [`Proxy::heal`], and forwards them then.
    pub fn hold_requests(&self) {
        self.plan(|plan| plan.hold_requests = true);
    }

    /// Holds replies back until [`Proxy::heal`], and forwards them then.
    pub fn hold_replies(&self) {
        self.plan(|plan| plan.hold_replies = true);
    }

    /// Forwards each reply this much later.
    pub fn delay_replies(&self, delay: Duration) {
        self.plan(|plan| plan.delay_replies = delay);
    }

    /// Lets the next requests reach the server, drops what comes back, and keeps the connection.
    pub fn swallow_replies(&self, replies: usize) {
        self.plan(|plan| plan.swallow_replies = replies);
    }

    /// Lets the next request reach the server, and cuts the connection in place of its reply.
    pub fn cut_at_reply(&self) {
        self.plan(|plan| plan.cut_at_reply = true);
    }

    /// Sends the next requests to the server twice, as a network or a client may that repeats what was
    /// not acknowledged.
    pub fn send_twice(&self, requests: usize) {
        self.plan(|plan| plan.send_twice = requests);
    }

    /// What has gone through so far.
    pub fn counts(&self) -> Counts {
        *self.faults.counts.borrow()
    }

    /// Waits until what has gone through is so.
    ///
    /// # Panics
    ///
    /// When it is not within 10 s.
    pub async fn wait_until(&self, is_so: impl Fn(Counts) -> bool) {
        let mut counts = self.faults.counts.subscribe();
        let seen = counts.wait_for(|counts| is_so(*counts));
        let seen = tokio::time::timeout(Duration::from_secs(10), seen).await;
        assert!(matches!(seen, Ok(Ok(_))), "what was waited for did not go through the proxy");
    }

    fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.faults.plan.lock().expect("no holder of the plan panics"));
        self.faults.changed.send_replace(());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.faults.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Faults {
    fn open(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.open.lock().expect("no holder of the set panics")
    }

    fn with_plan<T>(&self, look: impl FnOnce(&mut Plan) -> T) -> T {
        look(&mut self.plan.lock().expect("no holder of the plan panics"))
    }

    fn about_request(&self) -> Do {
        self.with_plan(|plan| match () {
            () if plan.black_hole => Do::Drop,
            () if plan.hold_requests => Do::Wait,
            () => Do::Forward,
        })
    }

    fn about_reply(&self) -> Do {
        self.with_plan(|plan| {
            if std::mem::take(&mut plan.cut_at_reply) {
                return Do::Cut;
            }
            if plan.swallow_replies > 0 {
                plan.swallow_replies -= 1;
                return Do::Drop;
            }
            match () {
                () if plan.black_hole => Do::Drop,
                () if plan.hold_replies => Do::Wait,
                () => Do::Forward,
            }
        })
    }
}

async fn listen(listener: TcpListener, faults: Arc<Faults>) {
    while let Ok((client, _)) = listener.accept().await {
        if faults.with_plan(|plan| plan.refuse) {
            cut(&client);
            faults.counts.send_modify(|counts| counts.refused += 1);
            continue;
        }
        // Before it counts, so that no cut that waits for it can come before it knows of cuts.
        let cuts = faults.cuts.subscribe();
        let mut number = 0;
        faults.counts.send_modify(|counts| {
            counts.connections += 1;
            counts.open += 1;
            number = counts.connections;
            faults.open().insert(number);
        });
        let server = *faults.server.lock().expect("no holder of the address panics");
        let faults = faults.clone();
        tokio::spawn(async move {
            forward(client, server, &faults, cuts).await;
            faults.open().remove(&number);
            faults.counts.send_modify(|counts| counts.open -= 1);
        });
    }
}

/// A reset in place of a polite end.
fn cut(stream: &TcpStream) {
    #[expect(deprecated, reason = "zero seconds of linger do not block; they make the end a reset")]
    let _ = stream.set_linger(Some(Duration::ZERO));
}

async fn forward(
    client: TcpStream,
    server: SocketAddr,
    faults: &Faults,
    mut cuts: watch::Receiver<u64>,
) {
    let Ok(upstream) = TcpStream::connect(server).await else { return cut(&client) };
    let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
    cut(&client);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = upstream.into_split();
    tokio::select! {
        () = requests(from_client, to_server, faults) => {}
        () = replies(from_server, to_client, faults) => {}
        _ = cuts.changed() => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, faults: &Faults) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        faults.counts.send_modify(|counts| counts.requests += 1);
        let twice = faults.with_plan(|plan| {
            let twice = plan.send_twice > 0;
            plan.send_twice = plan.send_twice.saturating_sub(1);
            twice
        });
        for _ in 0..1 + usize::from(twice) {
            if !pass(&piece[..length], &mut to, faults, || faults.about_request()).await {
                return;
            }
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, faults: &Faults) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        faults.counts.send_modify(|counts| counts.replies += 1);
        let delay = faults.with_plan(|plan| plan.delay_replies);
        if !delay.is_zero() {
            sleep(delay).await;
        }
        if !pass(&piece[..length], &mut to, faults, || faults.about_reply()).await {
            return;
        }
    }
}

/// Whether the connection goes on.
async fn pass(
    piece: &[u8],
    to: &mut OwnedWriteHalf,
    faults: &Faults,
    about: impl Fn() -> Do,
) -> bool {
    let mut changed = faults.changed.subscribe();
    loop {
        match about() {
            Do::Forward => return to.write_all(piece).await.is_ok(),
            Do::Drop => return true,
            Do::Cut => return false,
            Do::Wait => {
                if changed.changed().await.is_err() {
                    return false;
                }
            }
        }
    }
}
