//! A session over a stream in memory, against a server that answers as the test says.

use std::{
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    task::{Context, Poll},
    time::Duration,
};

use bytes::BytesMut;
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
    time::timeout,
};

use super::{parse::Garbled, *};

fn command(words: &[&str]) -> Command {
    words.iter().fold(Command::default(), Command::arg)
}

fn packed(words: &[&str]) -> Vec<u8> {
    let mut packed = Vec::new();
    command(words).write(&mut packed);
    packed
}

async fn ask(session: &Session, words: &[&str]) -> Result<Value, Broken> {
    session.send(&command(words)).await
}

/// `GET a` and `GET b`.
async fn ask_two(session: &Session) -> Result<Vec<Value>, Broken> {
    session.send_all(&[command(&["GET", "a"]), command(&["GET", "b"])]).await
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

async fn expect(server: &mut DuplexStream, words: &[&str]) {
    let expected = packed(words);
    let mut read = vec![0; expected.len()];
    server.read_exact(&mut read).await.expect("a command");
    assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(&expected));
}

/// Counts the writes that arrive at the stream.
struct Counted {
    stream: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        read: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, read)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, SeqCst);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn commands_that_are_ready_together_leave_in_one_write_and_each_gets_its_own_answer() {
    let (stream, mut server) = duplex(1 << 20);
    let writes = Arc::<AtomicUsize>::default();
    let session = Arc::new(Session::over(Counted { stream, writes: writes.clone() }));
    let asking: Vec<_> = (0..50)
        .map(|index| {
            let session = session.clone();
            tokio::spawn(async move { ask(&session, &["ECHO", &index.to_string()]).await })
        })
        .collect();
    for index in 0..50 {
        expect(&mut server, &["ECHO", &index.to_string()]).await;
    }
    assert_eq!(writes.load(SeqCst), 1);
    for index in 0..50 {
        let text = index.to_string();
        let answer = format!("${}\r\n{text}\r\n", text.len());
        server.write_all(answer.as_bytes()).await.unwrap();
    }
    for (index, asked) in asking.into_iter().enumerate() {
        assert_eq!(asked.await.unwrap(), Ok(bulk(&index.to_string())));
    }
    // The twin: one after the other they are writes of their own.
    for more in 1..4 {
        let (asked, ()) = tokio::join!(ask_two(&session), async {
            expect(&mut server, &["GET", "a"]).await;
            expect(&mut server, &["GET", "b"]).await;
            server.write_all(b":1\r\n:2\r\n").await.unwrap();
        });
        assert_eq!(asked, Ok(vec![Value::Int(1), Value::Int(2)]));
        assert_eq!(writes.load(SeqCst), 1 + more);
    }
}

#[tokio::test]
async fn whoever_sends_first_lets_those_who_are_ready_behind_it_join_its_write() {
    let (stream, mut server) = duplex(1 << 20);
    let writes = Arc::<AtomicUsize>::default();
    let session = Arc::new(Session::over(Counted { stream, writes: writes.clone() }));
    // The task that writes waits for something to send.
    tokio::task::yield_now().await;
    let mut first = std::pin::pin!(ask(&session, &["ECHO", "0"]));
    assert!(poll_once(first.as_mut()).await.is_none());
    // It has been woken, and has its turn before any of these.
    let behind: Vec<_> = (1..20)
        .map(|index| {
            let session = session.clone();
            tokio::spawn(async move { ask(&session, &["ECHO", &index.to_string()]).await })
        })
        .collect();
    for index in 0..20 {
        expect(&mut server, &["ECHO", &index.to_string()]).await;
    }
    assert_eq!(writes.load(SeqCst), 1);
    server.write_all(&b":1\r\n".repeat(20)).await.unwrap();
    assert_eq!(first.await, Ok(Value::Int(1)));
    for asked in behind {
        assert_eq!(asked.await.unwrap(), Ok(Value::Int(1)));
    }
}

/// What a future is ready with when it is polled once.
async fn poll_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    std::future::poll_fn(|cx| match std::pin::Pin::new(&mut future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn whoever_goes_away_takes_nobodys_answer_along() {
    let (stream, mut server) = duplex(1 << 16);
    let session = Session::over(stream);
    let gone = timeout(Duration::from_millis(20), ask(&session, &["GET", "gone"]));
    assert!(gone.await.is_err());
    let gone = timeout(Duration::from_millis(20), ask_two(&session));
    assert!(gone.await.is_err());
    let (asked, ()) = tokio::join!(ask(&session, &["GET", "here"]), async {
        expect(&mut server, &["GET", "gone"]).await;
        expect(&mut server, &["GET", "a"]).await;
        expect(&mut server, &["GET", "b"]).await;
        expect(&mut server, &["GET", "here"]).await;
        server.write_all(b"$4\r\ngone\r\n:1\r\n:2\r\n$4\r\nhere\r\n").await.unwrap();
    });
    assert_eq!(asked, Ok(bulk("here")));
}

#[tokio::test]
async fn answers_may_come_byte_by_byte() {
    let (stream, mut server) = duplex(1);
    let session = Session::over(stream);
    let answer = b"*3\r\n$5\r\nhello\r\n:-7\r\n*2\r\n$-1\r\n-NOSCRIPT no such\r\n";
    let (asked, ()) = tokio::join!(ask(&session, &["ANY"]), async {
        expect(&mut server, &["ANY"]).await;
        server.write_all(answer).await.unwrap();
    });
    let Ok(Value::Array(values)) = asked else { panic!("{asked:?}") };
    assert_eq!(values[..2], [bulk("hello"), Value::Int(-7)]);
    let Value::Array(inner) = &values[2] else { panic!("{values:?}") };
    assert_eq!(inner[0], Value::Nil);
    assert!(matches!(&inner[1], Value::ServerError(error) if error.code() == "NOSCRIPT"));
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_and_what_is_none_end_the_connection_for_all() {
    for (answers, told) in [
        (&b"+OK\r\n+OK\r\n"[..], Ok(Value::Okay)),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Err(Broken::Garbled)),
        (b"+OK\r\r", Err(Broken::Garbled)),
        (b"$3\r\nabcd\r\n", Err(Broken::Garbled)),
    ] {
        let (stream, mut server) = duplex(1 << 16);
        let session = Session::over(stream);
        let (asked, ()) = tokio::join!(ask(&session, &["ANY"]), async {
            expect(&mut server, &["ANY"]).await;
            server.write_all(answers).await.unwrap();
        });
        assert_eq!(asked, told);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0, "the stream is closed");
        assert_eq!(ask(&session, &["ANY"]).await, Err(Broken::Garbled));
        assert_eq!(ask_two(&session).await, Err(Broken::Garbled));
    }
}

#[tokio::test]
async fn a_stream_that_ends_tells_everybody_who_waits() {
    let (stream, mut server) = duplex(1 << 16);
    let session = Session::over(stream);
    let (one, several, other, ()) = tokio::join!(
        ask(&session, &["GET", "a"]),
        ask_two(&session),
        ask(&session, &["ANY"]),
        async {
            expect(&mut server, &["GET", "a"]).await;
            // The first of two answers is not both.
            server.write_all(b"$1\r\nx\r\n:1\r\n").await.unwrap();
            drop(server);
        }
    );
    assert_eq!(one, Ok(bulk("x")));
    assert_eq!((several, other), (Err(Broken::ended()), Err(Broken::ended())));
    assert_eq!(ask(&session, &["ANY"]).await, Err(Broken::ended()));
}

#[tokio::test]
async fn a_session_that_is_dropped_closes_a_stream_that_nobody_reads() {
    let (stream, mut server) = duplex(8);
    let session = Session::over(stream);
    let gone = timeout(Duration::from_millis(20), ask(&session, &["GET", "a"]));
    assert!(gone.await.is_err());
    drop(session);
    let mut read = Vec::new();
    server.read_to_end(&mut read).await.unwrap();
    assert_eq!(read.len(), 8, "what fitted into the stream");
}

#[test]
fn a_session_whose_runtime_has_ended_hangs_nobody() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (stream, _server) = duplex(1 << 16);
    let first = runtime();
    let session = first.block_on(async { Session::over(stream) });
    drop(first);
    let asked = runtime().block_on(ask(&session, &["ANY"]));
    assert_eq!(asked, Err(Broken::ended()));
}

#[tokio::test]
async fn what_waits_for_a_server_that_reads_nothing_is_bounded() {
    let (stream, _server) = duplex(8);
    let session = Session::over(stream);
    let large = Command::new("SET").arg("k").arg(vec![b'x'; 8 << 20]);
    let mut refused = None;
    for _ in 0..12 {
        let asked = timeout(Duration::from_millis(5), session.send(&large)).await;
        refused = refused.or(asked.ok());
    }
    assert!(matches!(refused, Some(Err(Broken::Io(io::ErrorKind::TimedOut, _)))), "{refused:?}");
    assert!(lock(&session.outbox).bytes.len() < UNSENT_AT_MOST + (9 << 20));
}

fn take(bytes: &[u8]) -> Result<Option<Value>, Garbled> {
    parse::take(&mut BytesMut::from(bytes))
}

#[test]
fn what_is_no_answer_is_told_as_soon_as_it_is_known() {
    for garbled in [
        &b"_\r\n"[..],
        b"%1\r\n",
        b">2\r\n",
        b"hello",
        b"\0",
        b"$-2\r\n",
        b"*-2\r\n",
        b"$x\r\n",
        b"$1e3\r\n",
        b":\r\n",
        b"$536870913\r\n",
        b"$9223372036854775808\r\n",
        b"*9223372036854775807\r\n",
        b"\r\n",
        b"+\xff\r\n",
        b"$1\r\nabc",
    ] {
        assert_eq!(take(garbled), Err(Garbled), "{}", garbled.escape_ascii());
    }
    assert_eq!(take(&b"*1\r\n".repeat(1000)), Err(Garbled));
    assert_eq!(take(&[b'+'; 70_000]), Err(Garbled));
    for more in
        [&b""[..], b"$", b"$3\r", b"$3\r\nab", b"*2147483\r\n:1\r\n", b"-ERR", b"$536870912\r\n"]
    {
        assert_eq!(take(more), Ok(None), "{}", more.escape_ascii());
    }
}

fn spelled(value: &Value) -> Vec<u8> {
    match value {
        Value::Nil => b"$-1\r\n".to_vec(),
        Value::Int(number) => format!(":{number}\r\n").into_bytes(),
        Value::Okay => b"+OK\r\n".to_vec(),
        Value::BulkString(bytes) => {
            [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
        }
        Value::Array(values) => {
            let head = format!("*{}\r\n", values.len()).into_bytes();
            [head, values.iter().flat_map(spelled).collect()].concat()
        }
        other => panic!("not spelled: {other:?}"),
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        Just(Value::Okay),
        any::<i64>().prop_map(Value::Int),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
    ];
    leaf.prop_recursive(3, 16, 5, |inner| prop::collection::vec(inner, 0..5).prop_map(Value::Array))
}

proptest! {
    #[test]
    fn what_a_server_spells_is_read_whole_or_not_at_all(value in values(), more in any::<[u8; 3]>()) {
        let whole = spelled(&value);
        for cut in 0..whole.len() {
            prop_assert_eq!(take(&whole[..cut]), Ok(None));
            prop_assert!(parse::wanted(&whole[..cut]) > cut);
            prop_assert!(parse::wanted(&whole[..cut]) <= whole.len());
        }
        let mut read = BytesMut::from(&[&whole[..], &more].concat()[..]);
        prop_assert_eq!(parse::take(&mut read), Ok(Some(value)));
        prop_assert_eq!(&read[..], &more[..]);
    }

    #[test]
    fn whatever_is_read_nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = (take(&bytes), parse::wanted(&bytes));
    }
}
