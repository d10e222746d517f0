//! The commands of the transitions: their arguments in the order that each script says.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use redis::{Cmd, Pipeline};

use super::{
    reply::letter,
    script::{self, Script},
};
use crate::{
    record::{Fingerprint, Grant, Previous, RecordKey},
    store::{Alias, Claim, Issue, Kept, Reason, Release, Resolve, Takeover, Verdict},
};

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
    let mut number = number.min(10u64.pow(N as u32) - 1);
    let mut decimals = [b'0'; N];
    for decimal in decimals.iter_mut().rev() {
        *decimal = b'0' + (number % 10) as u8;
        number /= 10;
    }
    decimals
}

fn print(print: Option<&Fingerprint>) -> &[u8] {
    print.map_or(&NO_PRINT, Fingerprint::as_bytes).as_slice()
}

/// Two commands that go out in one write.
pub(super) fn pair(first: &Cmd, second: &Cmd) -> Pipeline {
    let mut commands = Pipeline::with_capacity(2);
    commands.add_command(first.clone()).add_command(second.clone());
    commands
}

/// The name of a record in the server. The prefix has the colon that ends it.
pub(super) fn name(prefix: &str, key: &RecordKey) -> String {
    let mut name = String::with_capacity(prefix.len() + 43);
    name.push_str(prefix);
    URL_SAFE_NO_PAD.encode_string(key.as_bytes(), &mut name);
    name
}

/// `not_after` is the deadline of the claim by the server's clock, in ms; `trusted` the identity of the
/// server that may grant it, `*` for any one that says which it is, empty for any.
pub(super) fn claim(name: &str, claim: &Claim, not_after: u64, trusted: &str) -> Cmd {
    let mut command = script::CLAIM.on(name, 9, 192 + claim.label.len());
    command.arg(&claim.token.as_bytes()[..]).arg(print(claim.print.as_ref()));
    command.arg(ms(claim.lease)).arg(ms(claim.hold));
    match claim.takeover {
        Takeover::Refuse => command.arg(""),
        Takeover::Any => command.arg("*"),
        Takeover::Only(mark) => command.arg(format!("{}:{}", mark.fence.get(), mark.stamp_ms)),
    };
    match &claim.one_time {
        Some(token) => command.arg(&token.as_bytes()[..]),
        None => command.arg(""),
    };
    command.arg(trusted).arg(&claim.label[..]).arg(not_after);
    command
}

/// What makes the alias; for a look, which writes nothing, what looks whether it could be made.
pub(super) fn bind(name: &str, claimed: &Claim, alias: &Alias) -> (&'static Script, Cmd) {
    if claimed.is_look() {
        let (lease, hold) = (claimed.lease, claimed.hold);
        let look = Claim::new(alias.key, claimed.token, None, lease, hold, Duration::ZERO);
        return (&script::CLAIM, claim(name, &look, LOOK, ""));
    }
    let mut command = script::BIND.on(name, 2, 64);
    command.arg(ms(alias.ttl)).arg(&claimed.key.as_bytes()[..]);
    (&script::BIND, command)
}

/// A record as it stands.
pub(super) fn whole(name: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg("GETRANGE").arg(name).arg(0).arg(-1);
    command
}

pub(super) fn renew(name: &str, grant: &Grant) -> Cmd {
    let mut command = script::RENEW.on(name, 8, 160 + grant.label.len());
    command.arg(&grant.token.as_bytes()[..]).arg(print(grant.print.as_ref()));
    command.arg(grant.fence.get()).arg(grant.attempt);
    command.arg(ms(grant.lease)).arg(ms(grant.hold));
    command.arg(&grant.label[..]).arg(letter(grant.previous));
    command
}

pub(super) fn complete(name: &str, grant: &Grant, kept: &Kept) -> Cmd {
    let mut command = script::COMPLETE.on(name, 6, 160 + kept.payload.len());
    command.arg(&grant.token.as_bytes()[..]).arg(print(grant.print.as_ref()));
    // As wide as the record's own columns, to be compared as they are.
    command.arg(&column::<16>(grant.fence.get())[..]);
    command.arg(&column::<6>(grant.attempt.into())[..]);
    command.arg(ms(kept.retention)).arg(&kept.payload[..]);
    command
}

pub(super) fn release(name: &str, release: &Release) -> Cmd {
    let mut command = script::RELEASE.on(name, 8, 512);
    match release {
        Release::Grant { grant, reason } => {
            let mode = match reason {
                Reason::DidNotHappen => "R",
                Reason::Failed => "F",
                Reason::Unknown => "X",
            };
            command.arg(&grant.token.as_bytes()[..]).arg(ms(grant.hold)).arg(mode);
            command.arg(print(grant.print.as_ref()));
            command.arg(grant.fence.get()).arg(grant.attempt);
            command.arg(&grant.label[..]).arg(letter(grant.previous));
        }
        Release::CalledOff { token, hold, .. } => {
            command.arg(&token.as_bytes()[..]).arg(ms(*hold)).arg("U");
            command.arg(&NO_PRINT[..]).arg(0).arg(0);
            command.arg("").arg(letter(Previous::Nothing));
        }
    }
    command
}

pub(super) fn resolve(name: &str, resolve: &Resolve) -> Cmd {
    let (to, ttl, payload) = match &resolve.verdict {
        Verdict::Done(kept) => ("C", kept.retention, &kept.payload[..]),
        Verdict::NotDone { hold } => ("R", *hold, &[][..]),
    };
    let mut command = script::RESOLVE.on(name, 7, 128 + payload.len());
    command.arg(resolve.mark.fence.get()).arg(to).arg(ms(ttl)).arg(payload);
    if resolve.force {
        command.arg("1").arg("");
    } else {
        command.arg("0").arg(resolve.mark.stamp_ms);
    }
    command.arg(&resolve.token.as_bytes()[..]);
    command
}

pub(super) fn issue(name: &str, issue: &Issue) -> Cmd {
    let mut command = script::ISSUE.on(name, 3, 64);
    command.arg(&issue.token.as_bytes()[..]).arg(print(issue.print.as_ref())).arg(ms(issue.ttl));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_as_wide_as_it_is_whatever_the_number() {
        assert_eq!(&column::<6>(0), b"000000");
        assert_eq!(&column::<6>(1_234), b"001234");
        assert_eq!(&column::<6>(u32::MAX.into()), b"999999");
        assert_eq!(&column::<16>(1_764_480_000_000_000), b"1764480000000000");
        assert_eq!(&column::<16>(u64::MAX), b"9999999999999999");
    }
}
