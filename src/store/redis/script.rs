//! The transitions as Lua scripts, and the commands that run them.

use std::sync::OnceLock;

use redis::{Arg, Cmd};

/// One transition: what is told at once, if anything, then `record.lua`, then its own text.
#[derive(Debug)]
pub(super) struct Script {
    name: &'static str,
    text: &'static str,
    sha: OnceLock<String>,
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
            sha: OnceLock::new(),
        };
    };
}

/// The one that is about no record.
pub(super) static CANARY: Script =
    Script { name: "canary", text: include_str!("canary.lua"), sha: OnceLock::new() };

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

    /// The start of a command that runs it on `key` by its hash. The arguments follow.
    pub(super) fn on(&self, key: &str, arguments: usize, bytes: usize) -> Cmd {
        let sha = self.sha.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned());
        let mut command = Cmd::with_capacity(4 + arguments, 64 + key.len() + bytes);
        command.arg("EVALSHA").arg(sha.as_str()).arg("1").arg(key);
        command
    }

    /// The same command with the text in place of the hash, for a server that does not know the
    /// script. Running it is what teaches it: `SCRIPT LOAD` would be a trip of its own, and on a
    /// cluster a trip to the wrong node.
    pub(super) fn spelled_out(&self, by_hash: &Cmd) -> Cmd {
        let mut command = Cmd::with_capacity(by_hash.args_iter().len(), self.text.len() + 512);
        command.arg("EVAL").arg(self.text);
        for argument in by_hash.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Cmd) -> Vec<Vec<u8>> {
        let bytes = |argument: Arg<&[u8]>| match argument {
            Arg::Simple(bytes) => bytes.to_vec(),
            _ => panic!("no scripts take cursors"),
        };
        command.args_iter().map(bytes).collect()
    }

    #[test]
    fn spelled_out_a_command_differs_in_its_first_two_words_alone() {
        let mut by_hash = BIND.on("k", 2, 8);
        by_hash.arg(60_000).arg(b"\0target".as_slice());
        let (short, long) = (words(&by_hash), words(&BIND.spelled_out(&by_hash)));
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
        let mut hashes: Vec<_> = all.iter().map(|script| words(&script.on("k", 0, 0))).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), all.len());
        assert!(all.iter().all(|script| script.text.contains(include_str!("record.lua"))));
    }
}
