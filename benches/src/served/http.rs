//! HTTP/1.1 as bytes: as little work as can be for the process that only makes load.

use std::io;

use crate::app;

/// One answer, as far as the bench asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) replay: bool,
    pub(super) body: usize,
    /// Of head and body together.
    pub(super) length: usize,
}

/// The request that [`app::delivery`] makes for this key, or [`app::pass_through`] for none.
pub(super) fn request(key: Option<&str>) -> Vec<u8> {
    let (path, field) = (app::PATH, app::KEY);
    match key {
        None => format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        Some(key) => {
            let body = app::delivery_body(key);
            format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 {field}: {key}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        }
    }
    .into_bytes()
}

/// The answer that `bytes` begin with; `None` while some of it is still to come.
pub(super) fn answer(bytes: &[u8]) -> io::Result<Option<Answer>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let wrong = |what: &str| {
        let head = String::from_utf8_lossy(&bytes[..end]);
        io::Error::other(format!("the server answered {what}: {head}"))
    };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| wrong("what is no text"))?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    let status = status.and_then(|status| status.get(..3)?.parse().ok());
    let (mut body, mut replay) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            body = value.trim().parse().ok();
        }
        replay |= name.eq_ignore_ascii_case("idempotent-replayed");
    }
    // The app's answers are small: each is sent with its length.
    let body: usize = body.filter(|body| *body <= 1024 * 1024).ok_or_else(|| wrong("no length"))?;
    let length = end + 4 + body;
    let status = status.ok_or_else(|| wrong("no status"))?;
    Ok((bytes.len() >= length).then_some(Answer { status, replay, body, length }))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn the_same_is_sent_as_is_called() {
        for key in [None, Some("k-1")] {
            let called = key.map_or_else(app::pass_through, app::delivery);
            let (head, body) = called.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let sent = String::from_utf8(request(key)).unwrap();
            let (start, sent_body) = sent.split_once("\r\n\r\n").unwrap();
            let line = format!("{} {} HTTP/1.1\r\nhost: localhost", head.method, head.uri);
            assert!(start.starts_with(&line), "{start}");
            for (name, value) in &head.headers {
                assert!(start.contains(&format!("\r\n{name}: {}", value.to_str().unwrap())));
            }
            assert_eq!(sent_body.as_bytes(), body);
            if key.is_some() {
                assert!(start.contains(&format!("\r\ncontent-length: {}", body.len())), "{start}");
            }
        }
    }

    #[test]
    fn an_answer_is_read_once_all_of_it_is_there() {
        let text =
            b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\nidempotent-replayed: true\r\n\r\nbody";
        for part in 0..text.len() {
            assert_eq!(answer(&text[..part]).unwrap(), None, "{part}");
        }
        let whole = Answer { status: 201, replay: true, body: 4, length: text.len() };
        assert_eq!(answer(text).unwrap(), Some(whole));
        let first = answer(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap().unwrap();
        assert!(!first.replay);
    }

    #[test]
    fn what_is_no_such_answer_is_an_error() {
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let long = "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n";
        for text in [chunked, long, "SSH-2.0\r\ncontent-length: 0\r\n\r\n"] {
            assert!(answer(text.as_bytes()).is_err(), "{text}");
        }
    }
}
