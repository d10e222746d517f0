//! An identity made of several: `(json("/orderId"), json("/status"))`.

use super::{Identity, Input, Source};
use crate::refusal::Refusal;

/// Appends one more part to an identity that is made of several, so that it can be read and taken
/// apart again: `,` between the parts, `\` before a `,` or `\` within one.
pub(super) fn append(to: &mut Vec<u8>, first: bool, part: &[u8]) {
    if !first {
        to.push(b',');
    }
    for byte in part {
        if matches!(byte, b',' | b'\\') {
            to.push(b'\\');
        }
        to.push(*byte);
    }
}

impl Identity {
    /// The identity that a tuple of sources makes of these: `Identity::joined(["O-1", "PAID"])` is that
    /// of `(json("/orderId"), json("/status"))`.
    pub fn joined<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut joined = Vec::new();
        for (place, part) in parts.into_iter().enumerate() {
            append(&mut joined, place == 0, part.as_ref());
        }
        Self::new(joined)
    }
}

/// All parts there: one identity. None there: absent. What is between is no identity: it could be
/// another's.
fn join(
    from: &Input<'_>,
    parts: &[&dyn Source],
    describe: &str,
) -> Result<Option<Identity>, Refusal> {
    let mut joined = Vec::new();
    let mut missing = None;
    let mut found = 0;
    for part in parts {
        match part.read(from)? {
            None => missing = missing.or(Some(part)),
            Some(identity) if identity.as_bytes().is_empty() => {
                return Err(Refusal::identity_malformed(format!(
                    "{} is empty; the identity is made of {describe}",
                    part.describe()
                )));
            }
            Some(identity) => {
                append(&mut joined, found == 0, identity.as_bytes());
                found += 1;
            }
        }
    }
    match missing {
        _ if found == 0 => Ok(None),
        None => Ok(Some(Identity::new(joined))),
        Some(part) => Err(Refusal::identity_malformed(format!(
            "{} is missing; the identity is made of {describe}",
            part.describe()
        ))),
    }
}

fn enumerate(parts: &[&dyn Source]) -> String {
    let names: Vec<String> = parts.iter().map(|part| part.describe()).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => String::new(),
    }
}

macro_rules! composite {
    ($($part:ident $place:tt),+) => {
        /// All of them together: the parts joined by `,`, with a `\` before a `,` or a `\` within
        /// one. All of them absent is an absent identity; some of them absent is refused, and so
        /// is a part that is empty.
        impl<$($part: Source),+> Source for ($($part,)+) {
            fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
                join(from, &[$(&self.$place),+], &self.describe())
            }

            fn reads_body(&self) -> bool {
                $(self.$place.reads_body())||+
            }

            fn describe(&self) -> String {
                enumerate(&[$(&self.$place),+])
            }

            fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
                $(self.$place.fits_pattern(pattern)?;)+
                Ok(())
            }
        }
    };
}

composite!(A 0, B 1);
composite!(A 0, B 1, C 2);
composite!(A 0, B 1, C 2, D 3);
composite!(A 0, B 1, C 2, D 3, E 4);

/// As many as a configuration names, together.
#[cfg(feature = "serde")]
pub(crate) struct Several(Vec<super::AnySource>);

#[cfg(feature = "serde")]
impl Several {
    pub(crate) fn new(parts: Vec<super::AnySource>) -> Self {
        Self(parts)
    }

    fn parts(&self) -> Vec<&dyn Source> {
        self.0.iter().map(|part| part as &dyn Source).collect()
    }
}

#[cfg(feature = "serde")]
impl Source for Several {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        join(from, &self.parts(), &self.describe())
    }

    fn reads_body(&self) -> bool {
        self.0.iter().any(super::AnySource::reads_body)
    }

    fn describe(&self) -> String {
        enumerate(&self.parts())
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.0.iter().try_for_each(|part| part.fits_pattern(pattern))
    }
}
