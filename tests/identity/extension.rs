//! Identities that a layer further out has put beside the request.

use bytes::Bytes;
use http::Request;
use tower_idempotency::{Source, extension};

use crate::{Read, found, read_request};

#[derive(Clone)]
struct MessageId(&'static str);

impl AsRef<str> for MessageId {
    fn as_ref(&self) -> &str {
        self.0
    }
}

#[derive(Clone)]
struct Other(MessageId);

impl AsRef<str> for Other {
    fn as_ref(&self) -> &str {
        self.0.as_ref()
    }
}

fn with(extension: impl Clone + Send + Sync + 'static) -> Request<Bytes> {
    Request::post("/").extension(extension).body(Bytes::from("body")).unwrap()
}

fn id_in(request: Request<Bytes>) -> Read {
    read_request(&extension::<MessageId>(), request, None)
}

#[test]
fn an_extension_is_taken_as_it_is() {
    for id in ["m-1", " a,b ", "", "\u{1f4b0}"] {
        assert_eq!(id_in(with(MessageId(id))), found(id));
    }
}

#[test]
fn an_extension_of_another_type_is_absent() {
    assert_eq!(id_in(with(Other(MessageId("m-1")))), Ok(None));
    assert_eq!(id_in(Request::new(Bytes::new())), Ok(None));
    let other = extension::<Other>();
    assert_eq!(read_request(&other, with(Other(MessageId("m-1"))), None), found("m-1"));
}

#[test]
fn what_does_not_read_the_body_says_so() {
    let id = extension::<MessageId>();
    assert!(!id.reads_body());
    assert!(id.describe().starts_with("request extension "), "{}", id.describe());
    assert!(id.describe().ends_with("MessageId"), "{}", id.describe());
}
