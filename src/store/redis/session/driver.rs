//! The task that owns the stream of a session.

use std::{
    collections::VecDeque,
    io, mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Broken, Outbox, Waiting, lock, parse};

/// Buffers that a large answer or command has blown up are given back.
const KEPT_AT_MOST: usize = 256 * 1024;
const READ_AT_ONCE: usize = 16 * 1024;

/// Sends and reads until the session is dropped or the stream ends.
pub(super) struct Driver<S> {
    stream: S,
    outbox: Arc<Mutex<Outbox>>,
    /// What is being sent, and how much of it has gone.
    sending: Vec<u8>,
    sent: usize,
    /// The tasks that are ready have had their turn since there was something to send.
    let_others_run: bool,
    read: Box<[u8]>,
    unread: BytesMut,
    /// What must have been read before another try to take an answer makes sense.
    wanted: usize,
    in_flight: VecDeque<Waiting>,
}

impl<S> Driver<S> {
    pub(super) fn new(stream: S, outbox: Arc<Mutex<Outbox>>) -> Self {
        Self {
            stream,
            outbox,
            sending: Vec::new(),
            sent: 0,
            let_others_run: false,
            read: vec![0; READ_AT_ONCE].into(),
            unread: BytesMut::new(),
            wanted: 1,
            in_flight: VecDeque::new(),
        }
    }

    /// Takes what is in the outbox once what was taken before has gone. Whether there is anything to
    /// send now.
    fn collect(&mut self, cx: &mut Context<'_>) -> bool {
        if self.sent < self.sending.len() {
            return true;
        }
        self.sending.clear();
        self.sent = 0;
        if self.sending.capacity() > KEPT_AT_MOST {
            self.sending = Vec::new();
        }
        let mut outbox = lock(&self.outbox);
        if outbox.bytes.is_empty() {
            outbox.driver = Some(cx.waker().clone());
            self.let_others_run = false;
            return false;
        }
        if !self.let_others_run {
            // Woken again behind everybody who is ready now.
            self.let_others_run = true;
            cx.waker().wake_by_ref();
            return false;
        }
        self.let_others_run = false;
        mem::swap(&mut self.sending, &mut outbox.bytes);
        self.in_flight.append(&mut outbox.waiting);
        true
    }

    /// Hands out the answers that are there whole.
    fn hand_out(&mut self) -> Result<(), Broken> {
        while self.unread.len() >= self.wanted {
            match parse::take(&mut self.unread) {
                Ok(Some(value)) => {
                    self.wanted = 1;
                    let waiting = self.in_flight.pop_front().ok_or(Broken::Garbled)?;
                    if let Some(waiting) = waiting.answered(value) {
                        self.in_flight.push_front(waiting);
                    }
                }
                Ok(None) => {
                    self.wanted = parse::wanted(&self.unread);
                    return Ok(());
                }
                Err(parse::Garbled) => return Err(Broken::Garbled),
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        loop {
            if self.unread.is_empty() && self.unread.capacity() > KEPT_AT_MOST {
                self.unread = BytesMut::new();
            }
            let mut read = ReadBuf::new(&mut self.read);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read)) {
                Ok(()) if read.filled().is_empty() => return Poll::Ready(Broken::ended()),
                Ok(()) => self.unread.extend_from_slice(read.filled()),
                Err(error) => return Poll::Ready(error.into()),
            }
            if let Err(broken) = self.hand_out() {
                return Poll::Ready(broken);
            }
        }
    }

    /// Pending: all is sent, or cannot be sent now.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        loop {
            if !self.collect(cx) {
                return match ready!(Pin::new(&mut self.stream).poll_flush(cx)) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(error.into()),
                };
            }
            let unsent = &self.sending[self.sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, unsent)) {
                Ok(0) => return Poll::Ready(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(sent) => self.sent += sent,
                Err(error) => return Poll::Ready(error.into()),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let broken = match this.poll_read(cx) {
            Poll::Ready(broken) => broken,
            Poll::Pending => ready!(this.poll_write(cx)),
        };
        this.end(&broken);
        Poll::Ready(())
    }
}

impl<S> Driver<S> {
    fn end(&mut self, broken: &Broken) {
        let unsent = lock(&self.outbox).end(broken);
        let in_flight = mem::take(&mut self.in_flight);
        in_flight.into_iter().chain(unsent).for_each(|waiting| waiting.broken(broken));
    }
}

impl<S> Drop for Driver<S> {
    /// Also when its runtime ends: nobody may wait for what nobody reads.
    fn drop(&mut self) {
        self.end(&Broken::ended());
    }
}
