//! Sentinels that watch over a real Redis.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::Value;
use tokio::time::sleep;

use crate::{Certificates, Directory, RedisServer, database::free_port, redis_server::pings};

const READY_WITHIN: Duration = Duration::from_secs(20);

/// Three sentinels, which call a server down after a second. Killed when they are dropped.
#[derive(Debug)]
pub struct Sentinels {
    children: Vec<Child>,
    ports: Vec<u16>,
    tls_ports: Vec<u16>,
    _directory: Directory,
}

impl Sentinels {
    /// The name they have for the primary.
    pub const NAME: &'static str = "main";

    /// Starts them, and waits until they know of each other and of one replica.
    ///
    /// # Panics
    ///
    /// When there is no `redis-server`, or they do not get to know each other.
    pub async fn of(primary: &RedisServer) -> Self {
        Self::with(primary, None).await
    }

    /// The same by TLS, each with a port for that besides: they demand certificates of their clients.
    ///
    /// # Panics
    ///
    /// The same.
    pub async fn by_tls(primary: &RedisServer, certificates: &Certificates) -> Self {
        Self::with(primary, Some(certificates)).await
    }

    async fn with(primary: &RedisServer, certificates: Option<&Certificates>) -> Self {
        let directory = Directory::new();
        let (mut children, mut ports, mut tls_ports) = (Vec::new(), Vec::new(), Vec::new());
        for nth in 0..3 {
            let port = free_port().await;
            let (name, at) = (Self::NAME, primary.port_for_servers());
            let mut settings = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {name} 127.0.0.1 {at} 2\n\
                 sentinel down-after-milliseconds {name} 1000\nsentinel failover-timeout {name} 5000\n",
                directory.path().display(),
            );
            if let Some(certificates) = certificates {
                let tls_port = free_port().await;
                let path = |file| certificates.path(file).display().to_string();
                settings += &format!(
                    "tls-port {tls_port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n\
                     tls-auth-clients yes\ntls-replication yes\n",
                    path("server.pem"),
                    path("server.key"),
                    path("ca.pem"),
                );
                tls_ports.push(tls_port);
            }
            let file = directory.path().join(format!("{nth}.conf"));
            fs::write(&file, settings).expect("the directory is ours");
            let child = Command::new("redis-server")
                .arg(&file)
                .arg("--sentinel")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            children.push(child.expect("redis-server is on PATH"));
            ports.push(port);
        }
        let sentinels = Self { children, ports, tls_ports, _directory: directory };
        sentinels.ready().await;
        sentinels
    }

    async fn ready(&self) {
        let started = Instant::now();
        for port in &self.ports {
            loop {
                if pings((Ipv4Addr::LOCALHOST, *port).into()).await
                    && self.field(*port, "num-other-sentinels").await == "2"
                    && self.field(*port, "num-slaves").await == "1"
                {
                    break;
                }
                assert!(started.elapsed() < READY_WITHIN, "the sentinels do not find each other");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Their URLs.
    pub fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect()
    }

    /// Their URLs by TLS.
    pub fn tls_urls(&self) -> Vec<String> {
        self.tls_ports.iter().map(|port| format!("rediss://127.0.0.1:{port}")).collect()
    }

    /// Which server the first one names.
    pub async fn primary(&self) -> SocketAddr {
        let port = self.field(self.ports[0], "port").await.parse().expect("a port");
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Tells them to fail over though the primary is well, and waits until they name another.
    ///
    /// # Panics
    ///
    /// When they refuse.
    pub async fn fail_over(&self) {
        let before = self.primary().await;
        let answer = command(self.ports[0], &["SENTINEL", "FAILOVER", Self::NAME]).await;
        assert_eq!(answer, Value::Okay);
        self.wait_for_another_than(before).await;
    }

    /// Waits until they name another primary.
    ///
    /// # Panics
    ///
    /// When they do not within 20 s.
    pub async fn wait_for_another_than(&self, before: SocketAddr) {
        let started = Instant::now();
        while self.primary().await == before {
            assert!(started.elapsed() < READY_WITHIN, "no failover");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn field(&self, port: u16, name: &str) -> String {
        let Value::Array(fields) = command(port, &["SENTINEL", "MASTER", Self::NAME]).await else {
            return String::new();
        };
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{other:?}"),
        };
        let mut pairs = fields.chunks_exact(2);
        pairs.find(|pair| text(&pair[0]) == name).map(|pair| text(&pair[1])).unwrap_or_default()
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn command(port: u16, words: &[&str]) -> Value {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("it is a URL");
    let Ok(mut connection) = client.get_multiplexed_async_connection().await else {
        return Value::Nil;
    };
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(*word);
    }
    connection.send_packed_command(&command).await.unwrap_or(Value::Nil)
}
