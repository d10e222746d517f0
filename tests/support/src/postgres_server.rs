//! A real PostgreSQL for one test binary.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use crate::{
    Directory, Signal,
    database::{self, Account},
    send_signal,
};

/// The server of a distribution that keeps several versions side by side.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A server of its own, on a free port of 127.0.0.1, with a directory of its own, that trusts
/// everyone. Stopped and removed when it is dropped.
#[derive(Debug)]
pub struct PostgresServer {
    child: Child,
    port: u16,
    // Removed after the server has ended: fields are dropped in this order, after `drop`.
    _directory: Directory,
}

impl PostgresServer {
    /// Starts one, and waits until it lets anybody in.
    ///
    /// # Panics
    ///
    /// When PostgreSQL's server is not installed, or does not come up.
    pub async fn start() -> Self {
        let account = Account::other_than_root("postgres");
        let directory = Directory::new();
        account.owns(directory.path());
        let data = directory.path().join("data");
        let log = directory.path().join("log");
        let mut init = account.command(&program("initdb"));
        init.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-sync"]);
        init.arg("--pgdata").arg(&data);
        database::run(&mut init, "initdb");

        let port = database::free_port().await;
        let mut server = account.command(&program("postgres"));
        server.arg("-D").arg(&data).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
        // No socket elsewhere; nothing has to outlive the machine; room for many clients at once.
        let settings = ["unix_socket_directories=", "fsync=off", "max_connections=200"];
        for setting in settings {
            server.args(["-c", setting]);
        }
        let file = fs::File::create(&log).expect("a file can be made in a directory of one's own");
        let child = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot start postgres: {error}"));
        let mut server = Self { child, port, _directory: directory };
        // It listens before it lets anybody in, and says in this file when it does.
        let status = data.join("postmaster.pid");
        let ready = async || fs::read_to_string(&status).is_ok_and(|text| text.contains("\nready"));
        database::wait_until(&mut server.child, &log, ready).await;
        server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // Immediate shutdown. A SIGKILL would leave its children behind.
        send_signal(&mut self.child, Signal::SIGQUIT);
        database::end(&mut self.child, Duration::from_secs(10));
    }
}

/// On PATH, or where Debian has it, in its newest version.
fn program(name: &str) -> PathBuf {
    if let Some(found) = database::on_path(name) {
        return found;
    }
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().filter_map(Result::ok);
    let mut found: Vec<_> = versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|program| program.exists())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| {
        panic!("there is no {name}, and these tests need a real one: apt-get install postgresql")
    })
}
