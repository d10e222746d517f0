//! A real MariaDB for one test binary.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use tokio::net::TcpStream;

use crate::{
    Directory, Signal,
    database::{self, Account},
    send_signal,
};

/// A server of its own, on a free port of 127.0.0.1, with a directory of its own, that trusts
/// everyone. Stopped and removed when it is dropped.
#[derive(Debug)]
pub struct MariadbServer {
    child: Child,
    port: u16,
    _directory: Directory,
}

impl MariadbServer {
    /// Starts one, and waits until it listens. It has a database called `test`.
    ///
    /// # Panics
    ///
    /// When MariaDB's server is not installed, or does not come up.
    pub async fn start() -> Self {
        let account = Account::other_than_root("mysql");
        let directory = Directory::new();
        account.owns(directory.path());
        let data = directory.path().join("data");
        let log = directory.path().join("log");
        let mut install = account.command(&program("mariadb-install-db"));
        install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
        install.arg(argument("--datadir", &data)).arg(argument("--tmpdir", directory.path()));
        database::run(&mut install, "mariadb-install-db");

        let port = database::free_port().await;
        let mut server = account.command(&program("mariadbd"));
        server.args(["--no-defaults", "--bind-address=127.0.0.1", "--max-connections=300"]);
        // Nothing has to outlive the machine, and names take no look-up.
        server.args(["--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve"]);
        // Whoever connects is root: the port is the test's own.
        server.arg("--skip-grant-tables").args(["--skip-networking=0", "--skip-log-bin"]);
        server.arg(format!("--port={port}")).arg(argument("--datadir", &data));
        server.arg(argument("--tmpdir", directory.path())).arg(argument("--log-error", &log));
        server.arg(argument("--socket", &directory.path().join("socket")));
        server.arg(argument("--pid-file", &directory.path().join("pid")));
        let child = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot start mariadbd: {error}"));
        let mut server = Self { child, port, _directory: directory };
        let listens = async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok();
        database::wait_until(&mut server.child, &log, listens).await;
        server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("mysql://root@{}/test", self.address())
    }
}

impl Drop for MariadbServer {
    fn drop(&mut self) {
        send_signal(&mut self.child, Signal::SIGKILL);
        database::end(&mut self.child, Duration::from_secs(10));
    }
}

fn argument(name: &str, path: &std::path::Path) -> String {
    format!("{name}={}", path.display())
}

fn program(name: &str) -> PathBuf {
    let places = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/libexec")];
    let elsewhere = places.iter().map(|place| place.join(name)).find(|program| program.exists());
    database::on_path(name).or(elsewhere).unwrap_or_else(|| {
        panic!(
            "there is no {name}, and these tests need a real one: apt-get install mariadb-server"
        )
    })
}
