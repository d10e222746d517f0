//! The commands of the transitions: their arguments in the order that each script says.

use std::time::Duration;

use super::{
    reply::letter,
    resp::Command,
    script::{self, Script},
};
use crate::{
    record::{Fingerprint, Grant, Previous, RecordKey},
    store::{Alias, Claim, Issue, Kept, Reason, Release, Resolve, Takeover, Verdict},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

/// The deadline of a claim that reads and is never granted.
pub(super) const LOOK: u64 = 1;
const NO_PRINT: [u8; 32] = [0; 32];
/// A hundred years: more than any record is kept, and far from what a column can hold.
const LONGEST_MS: u64 = 100 * 366 * 24 * 60 * 60 * 1000;

/// Whole milliseconds, at least one: zero would mean no expiry, or none at all.
pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(LONGEST_MS).clamp(1, LONGEST_MS)
}

/// So many decimals, as a record has them; what is more than they can say is the most they can.
fn column<const N: usize>(number: u64) -> [u8; N] {
    let mut written = itoa::Buffer::new();
    let written = written.format(number.min(10u64.pow(N as u32) - 1)).as_bytes();
    let mut decimals = [b'0'; N];
    decimals[N - written.len()..].copy_from_slice(written);
    decimals
}

fn print(print: Option<&Fingerprint>) -> &[u8; 32] {
    print.map_or(&NO_PRINT, Fingerprint::as_bytes)
}

/// The name of a record in the server, which is spelled where it is needed.
#[derive(Clone, Copy)]
pub(super) struct Name<'a> {
    /// With the colon that ends it.
    pub(super) prefix: &'a str,
    pub(super) key: &'a RecordKey,
}

const DIGITS: usize = 43;

impl Name<'_> {
    pub(super) fn len(self) -> usize {
        self.prefix.len() + DIGITS
    }

    pub(super) fn digits(self) -> [u8; DIGITS] {
        let mut digits = [0; DIGITS];
        let written = URL_SAFE_NO_PAD.encode_slice(self.key.as_bytes(), &mut digits);
        debug_assert_eq!(written, Ok(DIGITS), "32 bytes are 43 digits");
        digits
    }
}

impl From<Name<'_>> for Vec<u8> {
    fn from(name: Name<'_>) -> Self {
        [name.prefix.as_bytes(), &name.digits()].concat()
    }
}

/// `not_after` is the deadline of the claim by the server's clock, in ms; `trusted` the identity of the
/// server that may grant it, `*` for any one that says which it is, empty for any.
pub(super) fn claim(name: Name<'_>, claim: &Claim, not_after: u64, trusted: &str) -> Command {
    let command = script::CLAIM
        .on(name, 9, 192 + claim.label.len())
        .arg(claim.token.as_bytes())
        .arg(print(claim.print.as_ref()))
        .number(ms(claim.lease))
        .number(ms(claim.hold));
    let command = match claim.takeover {
        Takeover::Refuse => command.arg(b""),
        Takeover::Any => command.arg(b"*"),
        Takeover::Only(mark) => command.arg(format!("{}:{}", mark.fence.get(), mark.stamp_ms)),
    };
    let command = match &claim.one_time {
        Some(token) => command.arg(token.as_bytes()),
        None => command.arg(b""),
    };
    command.arg(trusted).arg(&claim.label).number(not_after)
}

/// What makes the alias; for a look, which writes nothing, what looks whether it could be made.
pub(super) fn bind(name: Name<'_>, claimed: &Claim, alias: &Alias) -> (&'static Script, Command) {
    if claimed.is_look() {
        let (lease, hold) = (claimed.lease, claimed.hold);
        let look = Claim::new(alias.key, claimed.token, None, lease, hold, Duration::ZERO);
        return (&script::CLAIM, claim(name, &look, LOOK, ""));
    }
    let command = script::BIND.on(name, 2, 64);
    (&script::BIND, command.number(ms(alias.ttl)).arg(claimed.key.as_bytes()))
}

/// A record as it stands.
pub(super) fn whole(name: Name<'_>) -> Command {
    Command::new("GETRANGE").name(name).number(0).number(-1)
}

pub(super) fn renew(name: Name<'_>, grant: &Grant) -> Command {
    script::RENEW
        .on(name, 8, 160 + grant.label.len())
        .arg(grant.token.as_bytes())
        .arg(print(grant.print.as_ref()))
        .number(grant.fence.get())
        .number(grant.attempt)
        .number(ms(grant.lease))
        .number(ms(grant.hold))
        .arg(&grant.label)
        .arg(letter(grant.previous))
}

pub(super) fn complete(name: Name<'_>, grant: &Grant, kept: &Kept) -> Command {
    script::COMPLETE
        .on(name, 6, 160 + kept.payload.len())
        .arg(grant.token.as_bytes())
        .arg(print(grant.print.as_ref()))
        // As wide as the record's own columns, to be compared as they are.
        .arg(column::<16>(grant.fence.get()))
        .arg(column::<6>(grant.attempt.into()))
        .number(ms(kept.retention))
        .arg(&kept.payload)
}

pub(super) fn release(name: Name<'_>, release: &Release) -> Command {
    let command = script::RELEASE.on(name, 8, 512);
    match release {
        Release::Grant { grant, reason } => {
            let mode = match reason {
                Reason::DidNotHappen => "R",
                Reason::Failed => "F",
                Reason::Unknown => "X",
            };
            command
                .arg(grant.token.as_bytes())
                .number(ms(grant.hold))
                .arg(mode)
                .arg(print(grant.print.as_ref()))
                .number(grant.fence.get())
                .number(grant.attempt)
                .arg(&grant.label)
                .arg(letter(grant.previous))
        }
        Release::CalledOff { token, hold, .. } => command
            .arg(token.as_bytes())
            .number(ms(*hold))
            .arg("U")
            .arg(NO_PRINT)
            .number(0)
            .number(0)
            .arg("")
            .arg(letter(Previous::Nothing)),
    }
}

pub(super) fn resolve(name: Name<'_>, resolve: &Resolve) -> Command {
    let (to, ttl, payload) = match &resolve.verdict {
        Verdict::Done(kept) => ("C", kept.retention, &kept.payload[..]),
        Verdict::NotDone { hold } => ("R", *hold, &[][..]),
    };
    let command = script::RESOLVE
        .on(name, 7, 128 + payload.len())
        .number(resolve.mark.fence.get())
        .arg(to)
        .number(ms(ttl))
        .arg(payload);
    let command = match resolve.force {
        true => command.arg("1").arg(""),
        false => command.arg("0").number(resolve.mark.stamp_ms),
    };
    command.arg(resolve.token.as_bytes())
}

pub(super) fn issue(name: Name<'_>, issue: &Issue) -> Command {
    script::ISSUE
        .on(name, 3, 64)
        .arg(issue.token.as_bytes())
        .arg(print(issue.print.as_ref()))
        .number(ms(issue.ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_prefix_and_the_key_in_a_command_as_elsewhere() {
        let key = RecordKey::from_bytes([251; 32]);
        let name = Name { prefix: "shop:", key: &key };
        let expected = format!("shop:{key}").into_bytes();
        assert_eq!(whole(name).words().nth(1), Some(&expected[..]));
        assert_eq!(Vec::from(name), expected);
        assert_eq!(name.len(), expected.len());
    }

    #[test]
    fn a_column_is_as_wide_as_it_is_whatever_the_number() {
        assert_eq!(&column::<6>(0), b"000000");
        assert_eq!(&column::<6>(1_234), b"001234");
        assert_eq!(&column::<6>(u32::MAX.into()), b"999999");
        assert_eq!(&column::<16>(1_764_480_000_000_000), b"1764480000000000");
        assert_eq!(&column::<16>(u64::MAX), b"9999999999999999");
    }
}
