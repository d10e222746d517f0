//! One identity for a body with several notifications: all of theirs, in order.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::{IDENTITY_BYTES_AT_MOST, Identity, Input, Json, Source, composite, json};
use crate::refusal::{Refusal, RefusalKind};

/// What is read from each item of a JSON array. Made by [`each`].
#[derive(Clone, Debug)]
pub struct Each<S> {
    array: Json,
    inner: S,
}

/// One identity for a body with several notifications: `inner` is read from each item of this JSON
/// array as if it were the body, and the identities are joined by `,` in their order, with a `\`
/// before a `,` or a `\` within one.
///
/// More than 255 bytes are replaced by `\blake3:` and their hash in hexadecimal digits, which is an
/// identity that no other items have. An array that is empty is refused, and so is one with an item
/// that has no identity: it could not be said which items ran. An array that is not there is an
/// absent identity.
///
/// Danger: the batch is one operation. A sender that puts an item into another batch when it sends
/// it again has it run again; senders that batch say that they repeat the whole batch, or send one
/// item at a time.
///
/// # Panics
///
/// When `pointer` is no JSON Pointer, as [`json`].
///
/// # Example: a batch
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Identity, Input, Source, each, json};
///
/// let ids = each("/items", json("/id"));
/// let read = |body: &'static str| {
///     let (head, body) = http::Request::new(Bytes::from(body)).into_parts();
///     ids.read(&Input::new(&head, &body))
/// };
/// assert_eq!(
///     read(r#"{"items": [{"id": "a"}, {"id": "b"}]}"#).unwrap(),
///     Some(Identity::new("a,b"))
/// );
/// assert!(read(r#"{"items": []}"#).is_err());
/// assert!(read(r#"{"items": [{"id": "a"}, {}]}"#).is_err());
/// ```
#[track_caller]
pub fn each<S>(pointer: &str, inner: S) -> Each<S> {
    Each::of(json(pointer), inner)
}

impl<S> Each<S> {
    pub(crate) fn of(array: Json, inner: S) -> Self {
        Self { array, inner }
    }

    pub(crate) fn inner(&self) -> &S {
        &self.inner
    }

    pub(crate) fn describe_with(&self, inner: &str) -> String {
        format!("{inner} of each item of {}", self.array.describe())
    }

    /// Shows each item to `visit`, as an input of its own with its place; `None` if there is no array.
    pub(crate) fn visit(
        &self,
        from: &Input<'_>,
        mut visit: impl FnMut(usize, &Input<'_>) -> Result<(), Refusal>,
    ) -> Result<Option<()>, Refusal> {
        let items = self.array.visit_items(from, |place, item| {
            // The item is a part of the body, so that nothing is copied.
            let body = from.body().slice_ref(item.as_bytes());
            match visit(place, &Input { body: &body, ..*from }) {
                Ok(()) => ControlFlow::Continue(()),
                Err(refusal) => ControlFlow::Break(self.of_item(place, refusal)),
            }
        })?;
        match items {
            None => Ok(None),
            Some(0) => Err(Refusal::identity_malformed(format!(
                "{} is an empty array; it must have an item",
                self.array.describe()
            ))),
            Some(_) => Ok(Some(())),
        }
    }

    fn of_item(&self, place: usize, refusal: Refusal) -> Refusal {
        match refusal.kind() {
            RefusalKind::IdentityMalformed => Refusal::identity_malformed(format!(
                "item {place} of {}: {}",
                self.array.describe(),
                refusal.detail()
            )),
            _ => refusal,
        }
    }
}

impl<S: Source> Source for Each<S> {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        let mut all = Joined::default();
        let found = self.visit(from, |_, item| match self.inner.read(item)? {
            Some(identity) if !identity.as_bytes().is_empty() => {
                all.push(&identity);
                Ok(())
            }
            Some(_) => {
                Err(Refusal::identity_malformed(format!("{} is empty", self.inner.describe())))
            }
            None => {
                Err(Refusal::identity_malformed(format!("{} is missing", self.inner.describe())))
            }
        })?;
        Ok(found.map(|()| all.identity()))
    }

    fn describe(&self) -> String {
        self.describe_with(&self.inner.describe())
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.inner.fits_pattern(pattern)
    }
}

/// The identities so far: as they are while they are short, and hashed.
#[derive(Default)]
pub(crate) struct Joined {
    joined: Vec<u8>,
    items: usize,
    hasher: Option<Box<blake3::Hasher>>,
}

impl Joined {
    pub(crate) fn push(&mut self, identity: &Identity) {
        composite::append(&mut self.joined, self.items == 0, identity.as_bytes());
        self.items += 1;
        if self.joined.len() > IDENTITY_BYTES_AT_MOST || self.hasher.is_some() {
            // What is hashed is not kept: a batch may have many items.
            self.hasher.get_or_insert_default().update(&self.joined);
            self.joined.clear();
        }
    }

    pub(crate) fn identity(self) -> Identity {
        match self.hasher {
            None => Identity::new(self.joined),
            // Items never begin so: a `\` of theirs is followed by another, or by a `,`.
            Some(hasher) => {
                Identity::new(Bytes::from(format!("\\blake3:{}", hasher.finalize().to_hex())))
            }
        }
    }
}
