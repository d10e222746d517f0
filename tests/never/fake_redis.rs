//! A server that speaks the protocol of Redis and answers what a test wants.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The words of a command.
pub(crate) type Words = Vec<Vec<u8>>;

/// Listens on a free port of 127.0.0.1, and ends when it is dropped.
pub(crate) struct FakeRedis {
    port: u16,
    connections: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl FakeRedis {
    /// One that answers every command with these bytes, whatever they are. It tells the time itself,
    /// so that it is connected to.
    pub(crate) async fn start(
        answer: impl Fn(&Words) -> Vec<u8> + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::with_clock(|| Duration::from_secs(1_800_000_000), answer).await
    }

    /// The same, with another clock.
    pub(crate) async fn with_clock(
        now: impl Fn() -> Duration + Clone + Send + Sync + 'static,
        answer: impl Fn(&Words) -> Vec<u8> + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, now.clone(), answer.clone()));
            }
        });
        Self { port, connections, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for FakeRedis {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    now: impl Fn() -> Duration,
    answer: impl Fn(&Words) -> Vec<u8>,
) {
    let mut unread = BytesMut::new();
    loop {
        while let Some(words) = command(&mut unread) {
            let bytes = match &words[0][..] {
                b"TIME" => {
                    let now = now();
                    let parts = [now.as_secs().to_string(), now.subsec_micros().to_string()];
                    array(&parts.each_ref().map(String::as_bytes))
                }
                b"INFO" => b"-NOPERM it does not say\r\n".to_vec(),
                b"CLIENT" | b"SELECT" => b"+OK\r\n".to_vec(),
                _ => answer(&words),
            };
            if stream.write_all(&bytes).await.is_err() {
                return;
            }
        }
        if !matches!(stream.read_buf(&mut unread).await, Ok(1..)) {
            return;
        }
    }
}

/// Takes the next whole command.
fn command(unread: &mut BytesMut) -> Option<Words> {
    let mut rest = &unread[..];
    let count = number(&mut rest, b'*')?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(&mut rest, b'$')?;
        words.push(rest.get(..length)?.to_vec());
        rest = rest.get(length + 2..)?;
    }
    let taken = unread.len() - rest.len();
    unread.advance(taken);
    Some(words)
}

fn number(rest: &mut &[u8], mark: u8) -> Option<usize> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(rest[0], mark, "clients send arrays of bulk strings");
    let number = std::str::from_utf8(&rest[1..end]).ok()?.parse().ok()?;
    *rest = &rest[end + 2..];
    Some(number)
}

/// A bulk string of these columns.
pub(crate) fn bulk(columns: &[&[u8]]) -> Vec<u8> {
    let whole = columns.concat();
    let length = format!("${}\r\n", whole.len()).into_bytes();
    [&length[..], &whole, b"\r\n"].concat()
}

/// An array of bulk strings.
pub(crate) fn array(fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", fields.len()).into_bytes();
    for field in fields {
        bytes.extend_from_slice(format!("${}\r\n", field.len()).as_bytes());
        bytes.extend_from_slice(field);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
