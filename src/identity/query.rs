//! An identity in the query of the URI.

use bytes::Bytes;

use super::{Identity, Input, Source, pairs};
use crate::refusal::Refusal;

/// An identity in a parameter of the query. Made by [`query`].
#[derive(Clone, Debug)]
pub struct Query {
    name: String,
}

/// The identity in this parameter of the URI's query: its bytes, with `+` and `%2F` undone.
///
/// A parameter that is not there is an absent identity. One that is there with nothing after its `=`
/// is refused, and so is one that is there twice, even if both are alike. The body is not read, so
/// that a request can be refused before its body is sent.
///
/// # Panics
///
/// When `name` is empty.
///
/// # Example: an event's id in the callback's address
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Identity, Input, Source, query};
///
/// let request = http::Request::post("/hook?shop=7&event=e%2D1").body(()).unwrap();
/// let head = request.into_parts().0;
/// let found = query("event").read(&Input::new(&head, &Bytes::new())).unwrap();
/// assert_eq!(found, Some(Identity::new("e-1")));
/// ```
#[track_caller]
pub fn query(name: impl Into<String>) -> Query {
    let name = name.into();
    assert!(
        !name.is_empty(),
        "query(\"\"): give the name of a parameter, such as query(\"event\")"
    );
    Query { name }
}

impl Query {
    /// The parameter's bytes.
    pub(crate) fn find(&self, from: &Input<'_>) -> Result<Option<Bytes>, Refusal> {
        let query = from.head().uri.query().unwrap_or_default();
        pairs::only(query.as_bytes(), &self.name).map_err(|pairs::Twice| {
            Refusal::identity_malformed(format!("{} is there twice; send it once", self.describe()))
        })
    }
}

impl Source for Query {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        Ok(self.find(from)?.map(Identity::new))
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("query parameter {}", self.name)
    }
}
