//! CloudEvents over HTTP, whoever sends them.

use std::str;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use percent_encoding::percent_decode;

use super::remembered_for;
use crate::{
    identity::{Each, Header, Identity, Input, Joined, Source, each, header, json},
    policy::Policy,
    refusal::Refusal,
};

/// CloudEvents 1.0 over HTTP, in binary, structured and batched mode.
///
/// * The delivery is `source` and `id` together, as the specification has it: who receives an event
///   with the same both may take it for a duplicate [1]. A sender *may* give an event that it sends again the
///   same id; one that does not needs a [`Policy::business_key`], such as `subject`.
/// * Binary mode has them in the headers `ce-source` and `ce-id`: quoted strings are unquoted, then
///   percent-encoding is undone once [2]. So `ce-id: A%20B` is the `"A B"` of structured mode, and an
///   event is one operation in either mode.
/// * Structured mode is `application/cloudevents+json`, batched `application/cloudevents-batch+json`.
///   A batch is one operation, made of all its events; an empty one is refused with 400. Other
///   formats are refused with 415. Whatever else the content type says, the mode is binary.
/// * Nothing is compared.
/// * An answer of 2xx is kept, and given to every duplicate.
/// * "Not yet" is 503 with `Retry-After`. Nothing is refused with 410, which would end the
///   subscription, or with 429 [3].
/// * Retention and hold: 7 days. How long a sender goes on is its own: keep answers twice as long.
///
/// Identities over 255 bytes are replaced by a hash of theirs, since a `source` may be a long URI.
///
/// [1]: https://github.com/cloudevents/spec/blob/main/cloudevents/spec.md
/// [2]: https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md
/// [3]: https://github.com/cloudevents/spec/blob/main/cloudevents/http-webhook.md
///
/// # Example: a sender that goes on for ten days
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::sender;
///
/// let days = Duration::from_secs(20 * 24 * 60 * 60);
/// let policy = sender::cloudevents().hold(days).retention(days);
/// assert!(policy.check().is_ok());
/// ```
pub fn cloudevents() -> Policy {
    let event = CloudEvent {
        source: header("ce-source"),
        id: header("ce-id"),
        batch: each("", Structured),
    };
    remembered_for(Policy::webhook(event), 7)
}

/// Which event, or which of a batch, in whatever mode.
struct CloudEvent {
    source: Header,
    id: Header,
    batch: Each<Structured>,
}

enum Mode {
    Binary,
    Structured,
    Batched,
}

impl Source for CloudEvent {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        match mode(from)? {
            Mode::Batched => self.batch.read(from),
            Mode::Structured => Structured.read(from),
            Mode::Binary => together(attribute(&self.source, from)?, attribute(&self.id, from)?),
        }
    }

    fn describe(&self) -> String {
        "the CloudEvents attributes source and id".to_owned()
    }
}

/// The batch's media type begins like the single event's, so that it is looked for first.
fn mode(from: &Input<'_>) -> Result<Mode, Refusal> {
    let mut lines = from.head().headers.get_all(CONTENT_TYPE).iter();
    let media_type = lines.next().map(HeaderValue::as_bytes).unwrap_or_default();
    if lines.next().is_some() {
        return Err(Refusal::identity_malformed(
            "Content-Type is on several lines, so that it cannot be said how the event is to be \
             read; send it once",
        ));
    }
    let media_type = media_type.split(|byte| *byte == b';').next().unwrap_or_default();
    let media_type = media_type.trim_ascii().to_ascii_lowercase();
    let (mode, format) =
        if let Some(format) = media_type.strip_prefix(b"application/cloudevents-batch") {
            (Mode::Batched, format)
        } else if let Some(format) = media_type.strip_prefix(b"application/cloudevents") {
            (Mode::Structured, format)
        } else {
            return Ok(Mode::Binary);
        };
    if format == b"+json" {
        return Ok(mode);
    }
    Err(Refusal::identity_malformed(
        "events are read in JSON alone; send application/cloudevents+json, \
         application/cloudevents-batch+json, or binary mode",
    )
    .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

/// An event that is a JSON object.
#[derive(Clone, Copy)]
struct Structured;

impl Source for Structured {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        together(json("/source").read(from)?, json("/id").read(from)?)
    }

    fn describe(&self) -> String {
        "JSON field /source and JSON field /id".to_owned()
    }
}

fn together(source: Option<Identity>, id: Option<Identity>) -> Result<Option<Identity>, Refusal> {
    let missing = match (&source, &id) {
        (None, None) => return Ok(None),
        (Some(source), Some(id)) => {
            if !source.as_bytes().is_empty() && !id.as_bytes().is_empty() {
                let mut joined = Joined::default();
                joined.push(source);
                joined.push(id);
                return Ok(Some(joined.identity()));
            }
            "is empty"
        }
        _ => "is missing",
    };
    Err(Refusal::identity_malformed(format!(
        "the CloudEvents attribute source or id {missing}; an event is named by both"
    )))
}

/// The value of an attribute in binary mode, in UTF-8.
fn attribute(header: &Header, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
    let Some(line) = header.line(from)? else { return Ok(None) };
    let wrong = |what: &str| {
        Refusal::identity_malformed(format!("the value of the {} {what}", header.describe()))
    };
    let unquoted = unquote(line).ok_or_else(|| wrong("has a quote that does not end"))?;
    let value: Vec<u8> = percent_decode(&unquoted).collect();
    if str::from_utf8(&value).is_err() {
        return Err(wrong("is not UTF-8, percent-encoded"));
    }
    Ok(Some(Identity::new(Bytes::from(value))))
}

/// The strings in it without their quotes and backslashes (RFC 9110, section 5.6.4).
fn unquote(line: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(line.len());
    let mut quoted = false;
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => out.push(*bytes.next()?),
            byte => out.push(*byte),
        }
    }
    (!quoted).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &[u8])], body: &str) -> Result<Option<String>, String> {
        let mut request = http::Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, body) = request.body(Bytes::from(body.to_owned())).unwrap().into_parts();
        match cloudevents().identity.read(&Input::new(&head, &body)) {
            Ok(found) => Ok(found.map(|id| String::from_utf8(id.as_bytes().to_vec()).unwrap())),
            Err(refusal) => Err(format!("{} {}", refusal.status().as_u16(), refusal.detail())),
        }
    }

    fn binary(id: &str) -> Result<Option<String>, String> {
        read(&[("ce-source", b"/s"), ("ce-id", id.as_bytes())], "")
    }

    #[test]
    fn header_values_are_unquoted_and_percent_decoded_once() {
        for (sent, meant) in [
            ("A%20B", "A B"),
            ("\"A%20B\"", "A B"),
            ("\"A B\"", "A B"),
            ("A \"B\"", "A B"),
            ("A%2520B", "A%20B"),
            ("\"A\\\"B\"", "A\"B"),
            ("Euro%20%e2%82%AC", "Euro \u{20ac}"),
            ("A%2", "A%2"),
        ] {
            assert_eq!(binary(sent), Ok(Some(format!("/s,{meant}"))), "{sent}");
        }
        for sent in ["\"A", "A\"", "\"A\\", "%C0%A0", "%ff"] {
            assert!(binary(sent).unwrap_err().contains("header Ce-Id"), "{sent}");
        }
    }

    #[test]
    fn a_batch_is_not_taken_for_an_event_and_other_formats_for_nothing() {
        let event = r#"{"source": "/s", "id": "1"}"#;
        let batch = format!("[{event}, {event}]");
        let of =
            |media_type: &str, body: &str| read(&[("content-type", media_type.as_bytes())], body);
        let one = Ok(Some("/s,1".to_owned()));
        assert_eq!(of("application/cloudevents+json; charset=utf-8", event), one);
        assert_eq!(of("Application/CloudEvents+JSON", event), one);
        let two = Ok(Some("/s\\,1,/s\\,1".to_owned()));
        assert_eq!(of("application/cloudevents-batch+json", &batch), two);
        assert!(of("application/cloudevents-batch+json", "[]").unwrap_err().starts_with("400"));
        assert!(of("application/cloudevents+json", &batch).is_err());
        for other in ["+avro", "+xml", "", "-batch", "-batch+protobuf", "2+json"] {
            let refused = of(&format!("application/cloudevents{other}"), event).unwrap_err();
            assert!(refused.starts_with("415 events are read in JSON alone"), "{refused}");
        }
        assert_eq!(of("application/json", event), Ok(None), "binary mode, without the headers");
    }

    #[test]
    fn an_event_is_named_by_both_attributes_and_a_long_name_is_hashed() {
        assert!(read(&[("ce-id", b"1")], "").unwrap_err().contains("is missing"));
        assert!(read(&[("ce-source", b"/s")], "").unwrap_err().contains("is missing"));
        assert!(binary("\"\"").unwrap_err().contains("is empty"));
        assert_ne!(binary("a,b"), read(&[("ce-source", b"/s,a"), ("ce-id", b"b")], ""));
        let long = binary(&"i".repeat(300)).unwrap().unwrap();
        assert!(long.starts_with("\\blake3:"), "{long}");
        assert_ne!(Ok(Some(long)), binary(&"j".repeat(300)));
        let twice: [(&str, &[u8]); 3] = [("ce-source", b"/s"), ("ce-id", b"1"), ("ce-id", b"1")];
        assert!(read(&twice, "").unwrap_err().contains("on 2 lines"));
    }
}
