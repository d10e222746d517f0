//! The transitions as Lua scripts, and the commands that run them.

use std::sync::OnceLock;

use super::{command::Name, resp::Command};

/// One transition: what is told at once, if anything, then `record.lua`, then its own text.
#[derive(Debug)]
pub(super) struct Script {
    name: &'static str,
    text: &'static str,
    /// The words that run it by its hash on one key.
    start: OnceLock<Command>,
}

macro_rules! script {
    ($name:ident, $file:literal $(, after $quick:literal)?) => {
        pub(super) static $name: Script = Script {
            name: $file,
            text: concat!(
                $(include_str!($quick),)?
                include_str!("record.lua"),
                include_str!(concat!($file, ".lua"))
            ),
            start: OnceLock::new(),
        };
    };
}

/// The one that is about no record.
pub(super) static CANARY: Script =
    Script { name: "canary", text: include_str!("canary.lua"), start: OnceLock::new() };

script!(BIND, "bind");
script!(CLAIM, "claim", after "claim_quick.lua");
script!(COMPLETE, "complete", after "complete_quick.lua");
script!(ISSUE, "issue");
script!(RELEASE, "release");
script!(RENEW, "renew");
script!(RESOLVE, "resolve");

impl Script {
    /// What messages call it.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The start of a command that runs it by its hash on a record, with room for its arguments, which
    /// follow.
    pub(super) fn on(&self, name: Name<'_>, arguments: usize, bytes: usize) -> Command {
        self.begin(1 + arguments, name.len() + bytes).name(name)
    }

    /// The same, up to the name of the key.
    pub(super) fn begin(&self, arguments: usize, bytes: usize) -> Command {
        let start = self.start.get_or_init(|| {
            let script = redis::Script::new(self.text);
            Command::new("EVALSHA").arg(script.get_hash()).arg("1")
        });
        Command::beginning_with(start, arguments, bytes)
    }

    /// The same command with the text in place of the hash, for a server that does not know the
    /// script. Running it is what teaches it: `SCRIPT LOAD` would be a trip of its own, and on a
    /// cluster a trip to the wrong node.
    pub(super) fn spelled_out(&self, by_hash: &Command) -> Command {
        by_hash.words().skip(2).fold(Command::new("EVAL").arg(self.text), Command::arg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<&[u8]> {
        command.words().collect()
    }

    #[test]
    fn spelled_out_a_command_differs_in_its_first_two_words_alone() {
        let by_hash = BIND.begin(3, 8).arg("k").number(60_000).arg(b"\0target");
        let spelled_out = BIND.spelled_out(&by_hash);
        let (short, long) = (words(&by_hash), words(&spelled_out));
        assert_eq!(short[0], b"EVALSHA");
        assert_eq!(short[1].len(), 40);
        assert_eq!(long[0], b"EVAL");
        assert_eq!(long[1], BIND.text.as_bytes());
        assert_eq!(short[2..], long[2..]);
        assert_eq!(short[2..], [&b"1"[..], b"k", b"60000", b"\0target"]);
    }

    #[test]
    fn every_script_reads_the_record_and_has_a_hash_of_its_own() {
        let all = [&BIND, &CLAIM, &COMPLETE, &ISSUE, &RELEASE, &RENEW, &RESOLVE];
        let starts = all.map(|script| script.begin(0, 0));
        let mut hashes: Vec<_> = starts.iter().map(words).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), all.len());
        assert!(all.iter().all(|script| script.text.contains(include_str!("record.lua"))));
    }
}
