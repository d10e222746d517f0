//! The choices about what must be the same when an identity comes again.

use std::sync::Arc;

use super::{Mismatch, Policy};
use crate::fingerprint::{AnyField, BodyPart, Compared, Field, Rest};

impl Policy {
    /// Compares nothing when an identity comes again: whatever else the request says, it is answered
    /// from the first. Default: an API compares method, path, query and body; a webhook nothing.
    ///
    /// Danger: a client that uses a key for two operations is told that both were done.
    #[must_use]
    pub fn no_fingerprint(mut self) -> Self {
        self.compared = Compared::Nothing;
        self
    }

    /// Compares these fields by their meaning when an identity comes again, in place of the whole
    /// request: `.compare([json("/amount"), json("/currency")])`. Called again it adds more, which
    /// may be of another kind.
    ///
    /// A difference is refused with 422, and told to [`Policy::on_mismatch`]. A field that is absent
    /// compares as absent, one that cannot be read is refused with 400. JSON numbers are compared as
    /// numbers: `960`, `960.0` and `9.6e2` are one; `"960"` is another. The fields of forms, headers
    /// and XML are compared byte by byte. `json("")` is the whole JSON body, by its meaning.
    ///
    /// It takes the place of [`Policy::ignore`]: the last of the two counts. Without any field it is an
    /// error of the policy ([`Policy::check`]).
    ///
    /// # Example: a tampered amount
    ///
    /// ```
    /// use tower_idempotency::{Mismatch, Policy, header, json};
    ///
    /// let policy = Policy::webhook(json("/notifyId"))
    ///     .business_key((json("/orderId"), json("/status")))
    ///     .compare([json("/amount"), json("/currency")])
    ///     .compare([header("X-Shop")])
    ///     .on_mismatch(|mismatch: &Mismatch| eprintln!("{} differs", mismatch.key));
    /// assert!(policy.check().is_ok());
    /// ```
    #[must_use]
    pub fn compare<F: Field>(mut self, fields: impl IntoIterator<Item = F>) -> Self {
        let fields = fields.into_iter().map(AnyField::new);
        match &mut self.compared {
            Compared::Fields(before) => before.extend(fields),
            _ => self.compared = Compared::Fields(fields.collect()),
        }
        self
    }

    /// Compares method, path, query and the whole body by its meaning, but for these parts, which
    /// differ from one delivery to the next: `.ignore([json("/notify_time"), json("/sign")])` of a
    /// JSON body, `.ignore([form("sign")])` of a form. Called again it ignores more.
    ///
    /// Of a JSON body the order of members, whitespace, escapes and the spelling of numbers do not
    /// matter, as with [`Policy::compare`]; one that is no JSON, has a member twice or is more than 64
    /// deep is refused with 400. Of a form the order of the fields does not matter, but for those
    /// with one name; every body can be read as a form. An item of an array that is ignored keeps its
    /// place: an array of another length is another.
    ///
    /// It takes the place of [`Policy::compare`]: the last of the two counts. Which parts differ is not
    /// known to [`Policy::on_mismatch`].
    ///
    /// Nothing to ignore, parts of both kinds, or `json("")` are errors of the policy
    /// ([`Policy::check`]).
    ///
    /// # Example: a signature that is made anew for each delivery
    ///
    /// ```
    /// use tower_idempotency::{Policy, form, json};
    ///
    /// let policy = Policy::webhook(form("notify_id")).ignore([form("notify_time"), form("sign")]);
    /// assert!(policy.check().is_ok());
    ///
    /// let mixed = Policy::webhook(json("/id")).ignore([json("/sign")]).ignore([form("sign")]);
    /// assert!(mixed.check().unwrap_err().to_string().contains("a body is JSON or a form"));
    /// ```
    #[must_use]
    pub fn ignore<P: BodyPart>(mut self, parts: impl IntoIterator<Item = P>) -> Self {
        let mut rest = match self.compared {
            Compared::Rest(rest) => rest,
            _ => Rest::default(),
        };
        for part in parts {
            part.leave_out(&mut rest);
        }
        self.compared = Compared::Rest(rest);
        self
    }

    /// Is told when an identity came again with something else, so that a tampered amount is seen by
    /// somebody. It is called on the request's way, so it must not block.
    #[must_use]
    pub fn on_mismatch(mut self, tell: impl Fn(&Mismatch) + Send + Sync + 'static) -> Self {
        self.on_mismatch = Some(Arc::new(tell));
        self
    }
}
