//! A real Redis for one test.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    ops::Range,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use redis::{Value, aio::MultiplexedConnection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{Certificates, Directory, Signal, database::free_port, send_signal};

const READY_WITHIN: Duration = Duration::from_secs(10);
/// How far the port of a cluster's bus is from that of the node.
const BUS_OFFSET: u16 = 10_000;

/// A server of its own, on a free port of 127.0.0.1, with a directory of its own. Killed and removed
/// when it is dropped.
#[derive(Debug)]
pub struct RedisServer {
    child: Option<Child>,
    port: u16,
    tls_port: Option<u16>,
    directory: Directory,
    arguments: Vec<String>,
}

/// A server that is about to be started.
#[derive(Debug)]
pub struct Builder {
    port: Option<u16>,
    tls_port: Option<u16>,
    arguments: Vec<String>,
}

impl RedisServer {
    /// Starts one that keeps nothing on disk, and waits until it answers.
    ///
    /// # Panics
    ///
    /// When there is no `redis-server`, or it does not answer.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// One with other settings.
    pub fn builder() -> Builder {
        let fixed = ["--save", "", "--bind", "127.0.0.1", "--daemonize", "no", "--logfile", ""];
        Builder { port: None, tls_port: None, arguments: fixed.map(str::to_owned).to_vec() }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Its port for TLS, if it has one.
    ///
    /// # Panics
    ///
    /// When it has none.
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("it was started with certificates")
    }

    /// Where other servers reach it: by TLS, if it has a port for that.
    pub fn port_for_servers(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// The port of its bus, if it is a node of a cluster.
    pub fn bus(&self) -> u16 {
        self.port_for_servers() + BUS_OFFSET
    }

    /// Kills it on the spot (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it if it runs, starts it again on the same port in the same directory, and waits until
    /// it answers.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    pub async fn restart(&mut self) {
        self.kill();
        self.run().await;
    }

    /// Stops it (SIGSTOP): its connections stay, and nobody answers.
    pub fn stop_signal(&mut self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn cont_signal(&mut self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&mut self, signal: Signal) {
        let child = self.child.as_mut().expect("a server that was killed takes no signals");
        send_signal(child, signal);
    }

    /// A connection of the client's own, for what the test itself wants to know or do.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub async fn connection(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("its own URL is one");
        // As long as a busy machine may need.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(READY_WITHIN));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        connection.expect("a server that runs can be reached")
    }

    /// Runs one command. An error of the server is a value too.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub async fn command(&self, words: &[&str]) -> Value {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let answer = self.connection().await.send_packed_command(&command).await;
        answer.unwrap_or_else(|error| panic!("no answer to {words:?}: {error}"))
    }

    /// Gives these slots to this node of a cluster, one by one: `ADDSLOTSRANGE` came with 7.0.
    ///
    /// # Panics
    ///
    /// When it refuses.
    pub async fn add_slots(&self, slots: Range<u16>) {
        let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
        let mut words = vec!["CLUSTER", "ADDSLOTS"];
        words.extend(slots.iter().map(String::as_str));
        assert_eq!(self.command(&words).await, Value::Okay);
    }

    /// The names of all keys but the canaries, which stores keep beside their records.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub async fn names(&self) -> Vec<String> {
        let Value::Array(names) = self.command(&["KEYS", "*"]).await else { panic!("no names") };
        let name = |name| match name {
            Value::BulkString(name) => String::from_utf8_lossy(&name).into_owned(),
            other => panic!("{other:?} is no name"),
        };
        let is_canary = |name: &String| {
            let last = name.rsplit(':').next();
            last.is_some_and(|last| last == "canary" || last.starts_with("canary."))
        };
        names.into_iter().map(name).filter(|name| !is_canary(name)).collect()
    }

    async fn run(&mut self) {
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string()])
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => panic!(
                "there is no redis-server on PATH, and these tests need a real one: \
                 apt-get install redis-server"
            ),
            _ => panic!("cannot start redis-server: {error}"),
        }));
        let started = Instant::now();
        while !pings(self.address()).await {
            let child = self.child.as_mut().expect("set a few lines above");
            if let Ok(Some(status)) = child.try_wait() {
                panic!("redis-server ended with {status} while it was starting");
            }
            assert!(started.elapsed() < READY_WITHIN, "no PONG within {READY_WITHIN:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Builder {
    /// Keeps every write on disk before it is acknowledged.
    #[must_use]
    pub fn append_only(self) -> Self {
        self.argument("--appendonly", "yes").argument("--appendfsync", "always")
    }

    /// With this setting, such as `--requirepass`.
    #[must_use]
    pub fn argument(mut self, name: &str, value: &str) -> Self {
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// A replica of this server.
    #[must_use]
    pub fn replica_of(mut self, primary: &RedisServer) -> Self {
        // Three arguments: before 7.0 one that has a space is one word.
        let port = primary.port_for_servers().to_string();
        self.arguments.extend(["--replicaof", "127.0.0.1", &port].map(str::to_owned));
        self
    }

    /// A node of a cluster.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    #[must_use]
    pub fn cluster_node(self) -> Self {
        self.port(port_with_a_bus())
            .argument("--cluster-enabled", "yes")
            .argument("--cluster-node-timeout", "1000")
            .argument("--repl-diskless-sync-delay", "0")
    }

    /// With a port for TLS besides, over which it talks to other servers too. `clients` is `yes` where they
    /// must have a certificate.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates, clients: &str) -> Self {
        let port = port_with_a_bus();
        self.tls_port = Some(port);
        let [chain, key, authority] = ["server.pem", "server.key", "ca.pem"]
            .map(|file| certificates.path(file).display().to_string());
        self.argument("--tls-port", &port.to_string())
            .argument("--tls-cert-file", &chain)
            .argument("--tls-key-file", &key)
            .argument("--tls-ca-cert-file", &authority)
            .argument("--tls-auth-clients", clients)
            .argument("--tls-replication", "yes")
            .argument("--tls-cluster", "yes")
    }

    /// On this port, in place of a free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    ///
    /// When there is no `redis-server`, or it does not answer.
    pub async fn start(self) -> RedisServer {
        let port = match self.port {
            Some(port) => port,
            None => free_port().await,
        };
        let Self { tls_port, arguments, .. } = self;
        let directory = Directory::new();
        let mut server = RedisServer { child: None, port, tls_port, directory, arguments };
        server.run().await;
        server
    }
}

/// A port that is free together with the one that a node of a cluster listens on for other nodes: versions
/// before 7.0 cannot be told another.
fn port_with_a_bus() -> u16 {
    // Below those that systems give out as free ones, each tried once in a process.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    for _ in 0..1000 {
        let nth = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Relaxed));
        let port = 10_000 + (nth % 12_000) as u16;
        if is_free(port) && is_free(port + BUS_OFFSET) {
            return port;
        }
    }
    panic!("no two ports are free that are {BUS_OFFSET} apart")
}

/// Whether it answers, be it that it wants a password first.
pub(crate) async fn pings(address: SocketAddr) -> bool {
    let ping = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).await?;
        io::Result::Ok(&answer == b"+PONG\r\n" || answer.starts_with(b"-NOAUTH"))
    };
    matches!(timeout(Duration::from_secs(1), ping).await, Ok(Ok(true)))
}
