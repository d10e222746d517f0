//! Within what an identity is unique, besides the rule's name.

use std::{any::type_name, fmt};

use bytes::Bytes;
use http::{Extensions, HeaderName, StatusCode, request::Parts};

use crate::refusal::{Refusal, RefusalKind};

/// Within what an identity is unique, besides the rule's name: the tenant, the user, or everyone.
#[derive(Clone)]
pub struct Scope(Kind);

#[derive(Clone)]
enum Kind {
    Everyone,
    Header(HeaderName),
    Extension { read: fn(&Extensions) -> Option<&str>, type_name: &'static str },
}

impl Scope {
    /// All callers share the identities: right for the notifications of one sender, wrong for an API
    /// with more than one client.
    pub fn everyone() -> Self {
        Self(Kind::Everyone)
    }

    /// What this header says, as a gateway in front sets it. A request without it is refused with
    /// 400.
    ///
    /// Danger: a caller who may choose the header chooses whose answers it gets. A bearer token is
    /// no scope: a new token would be a new key, and a second run.
    ///
    /// # Panics
    ///
    /// When `name` is no name of a header field.
    #[track_caller]
    pub fn header<N>(name: N) -> Self
    where
        N: TryInto<HeaderName>,
        N::Error: fmt::Display,
    {
        match name.try_into() {
            Ok(name) => Self(Kind::Header(name)),
            Err(error) => panic!("Scope::header(..): {error}; give the name of a header field"),
        }
    }

    /// What this request extension says, as an authentication layer further out sets it. A request
    /// without it is answered with 500 and the type's name.
    pub fn extension<T: AsRef<str> + Clone + Send + Sync + 'static>() -> Self {
        Self(Kind::Extension {
            read: |extensions| extensions.get::<T>().map(AsRef::as_ref),
            type_name: type_name::<T>(),
        })
    }

    pub(crate) fn is_everyone(&self) -> bool {
        matches!(self.0, Kind::Everyone)
    }

    /// Whose keys are whose, after `Keys`, as clients read it.
    pub(crate) fn describe(&self) -> String {
        match &self.0 {
            Kind::Everyone => "are shared by all callers".to_owned(),
            Kind::Header(name) => format!("belong to whom the header `{name}` names"),
            Kind::Extension { type_name, .. } => {
                // Where the type is defined says nothing to a client.
                let (path, arguments) = match type_name.split_once('<') {
                    Some((path, arguments)) => (path, format!("<{arguments}")),
                    None => (*type_name, String::new()),
                };
                let name = path.rsplit("::").next().unwrap_or(path);
                format!("belong to the caller's `{name}{arguments}`")
            }
        }
    }

    /// The scope of this request; empty for everyone.
    pub(crate) fn read(&self, head: &Parts) -> Result<Bytes, Refusal> {
        match &self.0 {
            Kind::Everyone => Ok(Bytes::new()),
            Kind::Header(name) => {
                let mut values = head.headers.get_all(name).iter();
                match (values.next(), values.next()) {
                    (Some(value), None) if !value.is_empty() => {
                        Ok(Bytes::copy_from_slice(value.as_bytes()))
                    }
                    _ => Err(Refusal::new(
                        RefusalKind::ScopeMissing,
                        format!(
                            "the header {name}, which says whose key this is, must be there once"
                        ),
                    )
                    .with_status(StatusCode::BAD_REQUEST)),
                }
            }
            Kind::Extension { read, type_name } => match read(&head.extensions) {
                Some(scope) => Ok(Bytes::copy_from_slice(scope.as_bytes())),
                None => Err(Refusal::new(
                    RefusalKind::ScopeMissing,
                    format!(
                        "the request has no extension {type_name}; add the layer that sets it \
                         outside of the idempotency layer"
                    ),
                )),
            },
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Everyone => f.write_str("everyone"),
            Kind::Header(name) => write!(f, "header {name}"),
            Kind::Extension { type_name, .. } => write!(f, "extension {type_name}"),
        }
    }
}
