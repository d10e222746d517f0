//! A binary of ours as a process of its own, which a test can kill as a power cut would.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::{Signal, send_signal};

/// How long a line is waited for before the test fails.
const LINE_WITHIN: Duration = Duration::from_secs(30);

/// A process, killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Process {
    /// Starts a program, such as `env!("CARGO_BIN_EXE_name")` or what [`Process::example`] finds,
    /// with these arguments.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(program: impl AsRef<Path>, arguments: &[&str]) -> Self {
        let program = program.as_ref();
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let stdout = child.stdout.take().expect("its stdout is piped, three lines above");
        let (send, lines) = mpsc::channel();
        // Read on, whether or not somebody waits for a line: a full pipe would stop the process.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, lines }
    }

    /// Starts an example of this workspace, which `cargo test` has built.
    ///
    /// # Panics
    ///
    /// When it is not there.
    pub fn example(name: &str, arguments: &[&str]) -> Self {
        // The test's own binary is in target/<profile>/deps, examples are in target/<profile>/examples.
        let test = std::env::current_exe().expect("a process can find its own binary");
        let profile = test.parent().and_then(Path::parent).expect("tests are in <profile>/deps");
        let program = profile.join("examples").join(name);
        assert!(
            program.exists(),
            "{} is not there: build it with `cargo build --example {name}`",
            program.display()
        );
        Self::start(program, arguments)
    }

    /// Waits for the first line from now that contains `text`, and gives it back whole.
    ///
    /// # Panics
    ///
    /// When there is none within 30 s, or before the process ends.
    pub fn wait_for_line(&self, text: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(LINE_WITHIN) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with {text:?} ({error}), but: {seen:#?}"),
            }
        }
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&mut self, signal: Signal) {
        send_signal(&mut self.child, signal);
    }

    /// Kills it on the spot (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end; whether it was a success.
    ///
    /// # Panics
    ///
    /// When the operating system cannot say.
    pub fn wait(&mut self) -> bool {
        self.child.wait().expect("a child can be waited for").success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
