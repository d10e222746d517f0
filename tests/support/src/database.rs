//! What the databases have in common when they are started.

use std::{
    env, fs, io,
    net::Ipv4Addr,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tokio::{net::TcpListener, time::sleep};

/// A database on a busy machine takes its time to come up.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Whom a database runs as: they refuse to run as root.
pub(crate) struct Account(Option<(u32, u32)>);

impl Account {
    /// This user where the tests are run by root, else whoever runs them.
    pub(crate) fn other_than_root(user: &str) -> Self {
        if !nix::unistd::Uid::effective().is_root() {
            return Self(None);
        }
        let found = nix::unistd::User::from_name(user).expect("the users can be read");
        let found = found.unwrap_or_else(|| {
            panic!("root cannot run a database, and there is no user {user}: install its package")
        });
        Self(Some((found.uid.as_raw(), found.gid.as_raw())))
    }

    /// Gives it a directory.
    pub(crate) fn owns(&self, directory: &Path) {
        if let Some((user, group)) = self.0 {
            chown(directory, Some(user), Some(group)).expect("root can give a directory away");
        }
    }

    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        // The directory that the tests run in may be closed to this user.
        command.current_dir("/");
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
        command
    }
}

/// A program on PATH that may be run.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|place| place.join(name)).find(|program| program.is_file())
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command, name: &str) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
    assert!(
        output.status.success(),
        "{name} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A port that was free a moment ago.
pub(crate) async fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let address = listener.and_then(|listener| listener.local_addr());
    address.expect("127.0.0.1 has a free port").port()
}

/// Waits until a server that was started is ready.
pub(crate) async fn wait_until(child: &mut Child, log: &Path, ready: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !ready().await {
        if let Ok(Some(status)) = child.try_wait() {
            panic!("it ended with {status} while it was starting: {}", text(log));
        }
        assert!(started.elapsed() < READY_WITHIN, "not up within {READY_WITHIN:?}: {}", text(log));
        sleep(Duration::from_millis(10)).await;
    }
}

fn text(log: &Path) -> String {
    fs::read(log).map_or_else(
        |error: io::Error| format!("no log ({error})"),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

/// Waits for the end of a server that was told to end, and kills it if it does not.
pub(crate) fn end(child: &mut Child, within: Duration) {
    let started = Instant::now();
    while started.elapsed() < within {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}
