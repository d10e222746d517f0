//! The process that makes the load: connections that are kept alive, orders on stdin, a line about
//! each on stdout. It ends with its stdin, so with the process that started it.

use std::{
    error::Error,
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use super::http;
use crate::order::{Order, Told};

/// No order takes this long, unless somebody has gone away.
pub(super) const WITHIN: Duration = Duration::from_secs(60);

/// Carries out what stdin orders until it ends.
///
/// # Errors
///
/// When there is no server at this address, or what it answers is no answer, or it does not answer, or
/// what stdin says is no order.
pub async fn run(server: SocketAddr, connections: usize) -> Result<(), Box<dyn Error>> {
    let mut idle = Vec::new();
    for _ in 0..connections {
        idle.push(Connection::open(server).await?);
    }
    // Between orders this process has nothing else to do than to wait for the next.
    for line in io::stdin().lines() {
        let order: Order = line?.parse()?;
        let carried_out = timeout(WITHIN, carry_out(order, std::mem::take(&mut idle)));
        let (told, connections) =
            carried_out.await.map_err(|_| format!("`{order}` was not carried out in time"))??;
        idle = connections;
        writeln!(io::stdout(), "{told}")?;
    }
    Ok(())
}

/// Each connection sends the next request when it has the answer to its last.
async fn carry_out(
    order: Order,
    connections: Vec<Connection>,
) -> io::Result<(Told, Vec<Connection>)> {
    let requests: Vec<_> = order.keys().map(|key| http::request(key.as_deref())).collect();
    let requests = Arc::new(Mutex::new(requests.into_iter()));
    let started = Instant::now();
    let mut running = JoinSet::new();
    for mut connection in connections {
        let requests = requests.clone();
        running.spawn(async move {
            let next = || requests.lock().unwrap_or_else(PoisonError::into_inner).next();
            let mut told = Told::default();
            while let Some(request) = next() {
                connection.exchange(&request, &mut told).await?;
            }
            io::Result::Ok((told, connection))
        });
    }
    let (mut all, mut idle) = (Told::default(), Vec::new());
    while let Some(ended) = running.join_next().await {
        let (told, connection) = ended.map_err(io::Error::other)??;
        all.join(told);
        idle.push(connection);
    }
    all.wall = started.elapsed();
    Ok((all, idle))
}

struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    async fn open(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(4096) })
    }

    async fn exchange(&mut self, request: &[u8], told: &mut Told) -> io::Result<()> {
        self.stream.write_all(request).await?;
        self.read.clear();
        loop {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some(answer) = http::answer(&self.read)? else { continue };
            if answer.length != self.read.len() {
                return Err(io::Error::other("the server said more than was asked"));
            }
            told.add(matches!(answer.status, 200 | 201), answer.replay, answer.body);
            return Ok(());
        }
    }
}
