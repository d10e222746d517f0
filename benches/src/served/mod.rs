//! The app behind sockets: this process serves it, and another one asks, so that the CPU time of this
//! one is the server's alone.

mod http;
mod load;

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
};

use axum::{Router, serve::ListenerExt};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    affinity::Cores,
    order::{Order, Told},
};

pub use load::run as make_load;

/// An app that is served over loopback, and the process that sends it requests.
#[derive(Debug)]
pub struct Served {
    server: JoinHandle<()>,
    load: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Served {
    /// Serves the app on a free port, and starts this program again to keep so many connections to it.
    ///
    /// # Panics
    ///
    /// When there is no port or no process to be had.
    pub async fn start(app: Router, connections: usize, cores: Option<Cores>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        // As servers mostly do; on these connections nothing waits for anything, so it changes nothing.
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let server = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("axum::serve has no end of its own");
        });
        let mut load = match cores {
            Some(cores) => cores.beside(|| start_load(address, connections)),
            None => start_load(address, connections),
        };
        let orders = load.stdin.take().expect("it is piped");
        let answers = BufReader::new(load.stdout.take().expect("it is piped"));
        Self { server, load, orders, answers }
    }

    /// Lets the other process send these requests; what it was told.
    ///
    /// # Panics
    ///
    /// When it says nothing, or nothing that makes sense.
    pub async fn send(&mut self, order: Order) -> Told {
        let line = format!("{order}\n");
        let mut told = String::new();
        let answered = async {
            self.orders.write_all(line.as_bytes()).await?;
            self.answers.read_line(&mut told).await
        };
        // It has the same limit, and says more when it comes to it.
        let answered = timeout(load::WITHIN * 2, answered).await;
        answered.expect("the load process is at work").expect("the load process takes orders");
        told.parse().expect("the load process has sent everything, or has said above why not")
    }

    /// Ends the other process, then the server.
    pub async fn end(self) {
        let Self { server, mut load, orders, answers } = self;
        drop((orders, answers));
        if timeout(load::WITHIN, load.wait()).await.is_err() {
            let _ = load.kill().await;
        }
        server.abort();
    }
}

/// Killed should it be dropped before its end; it ends by itself when its stdin does.
fn start_load(server: SocketAddr, connections: usize) -> Child {
    let this = std::env::current_exe().expect("a process can find its own binary");
    Command::new(this)
        .args(["--load", &server.to_string(), "--tasks", &connections.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("this program can be started again")
}
