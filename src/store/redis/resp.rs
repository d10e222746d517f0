//! Commands, spelled as they go over the wire while they are made: each argument is copied once into
//! the command, and the command once into what is sent.

use bytes::Bytes;
use itoa::Integer;

use super::command::Name;

/// `$`, the longest length, and the ends of two lines.
const FRAME: usize = 1 + 20 + 2 + 2;

/// A command and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    words: usize,
    /// The words, each after its length.
    spelled: Vec<u8>,
}

impl Command {
    /// The command of this name.
    pub(super) fn new(name: &str) -> Self {
        Self::default().arg(name)
    }

    /// One that begins with these words, and has room for so many more of so many bytes together.
    pub(super) fn beginning_with(start: &Self, more: usize, bytes: usize) -> Self {
        let mut spelled = Vec::with_capacity(start.spelled.len() + more * FRAME + bytes);
        spelled.extend_from_slice(&start.spelled);
        Self { words: start.words, spelled }
    }

    /// One more argument, of any bytes. Of an array the length is known before it runs.
    #[inline]
    pub(super) fn arg(self, argument: impl AsRef<[u8]>) -> Self {
        let argument = argument.as_ref();
        self.parts_of_one([argument], argument.len())
    }

    /// One more argument: the name of a record.
    pub(super) fn name(self, name: Name<'_>) -> Self {
        self.parts_of_one([name.prefix.as_bytes(), &name.digits()], name.len())
    }

    #[inline]
    fn parts_of_one<const N: usize>(mut self, parts: [&[u8]; N], length: usize) -> Self {
        line(&mut self.spelled, b'$', length);
        parts.iter().for_each(|part| self.spelled.extend_from_slice(part));
        self.spelled.extend_from_slice(b"\r\n");
        self.words += 1;
        self
    }

    /// One more argument, in decimals.
    pub(super) fn number(self, number: impl Integer) -> Self {
        self.arg(itoa::Buffer::new().format(number))
    }

    /// Writes it as it is sent.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.reserve(FRAME + self.spelled.len());
        line(out, b'*', self.words);
        out.extend_from_slice(&self.spelled);
    }

    /// Its name and its arguments.
    pub(super) fn words(&self) -> impl Iterator<Item = &[u8]> {
        words(&self.spelled)
    }

    /// Its name and its arguments, as parts of one copy.
    pub(super) fn parts(&self) -> Vec<Bytes> {
        let copy = Bytes::copy_from_slice(&self.spelled);
        let mut parts = Vec::with_capacity(self.words);
        parts.extend(words(&copy).map(|word| copy.slice_ref(word)));
        parts
    }
}

fn words(mut spelled: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        // Spelled by us, so it needs no check but for its end.
        let (mut length, mut at) = (0, 1);
        while *spelled.get(at)? != b'\r' {
            length = length * 10 + usize::from(spelled[at] - b'0');
            at += 1;
        }
        let (word, after) = spelled[at + 2..].split_at(length);
        spelled = &after[2..];
        Some(word)
    })
}

fn digit(number: usize) -> u8 {
    b'0' + number as u8
}

#[inline]
fn line(out: &mut Vec<u8>, kind: u8, number: usize) {
    match number {
        0..10 => out.extend_from_slice(&[kind, digit(number), b'\r', b'\n']),
        10..100 => {
            let line = [kind, digit(number / 10), digit(number % 10), b'\r', b'\n'];
            out.extend_from_slice(&line);
        }
        _ => {
            out.push(kind);
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(command: &Command) -> Vec<u8> {
        let mut out = Vec::new();
        command.write(&mut out);
        out
    }

    proptest! {
        #[test]
        fn a_command_is_spelled_as_the_client_crate_spells_it(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1200), 0..12),
            number in any::<u64>(),
        ) {
            let mut theirs = redis::cmd("ANY");
            let mut ours = Command::new("ANY").number(number);
            theirs.arg(number);
            for word in &words {
                theirs.arg(&word[..]);
                ours = ours.arg(word);
            }
            prop_assert_eq!(sent(&ours), theirs.get_packed_command());
            let number = number.to_string();
            let expected = [&b"ANY"[..], number.as_bytes()];
            let expected = expected.into_iter().chain(words.iter().map(|word| &word[..]));
            prop_assert!(ours.words().eq(expected.clone()));
            prop_assert!(ours.parts().iter().map(|part| &part[..]).eq(expected));
        }
    }

    #[test]
    fn one_that_begins_with_another_has_its_words_first() {
        let start = Command::new("A").arg("b");
        let longer = Command::beginning_with(&start, 1, 1).arg("c");
        assert_eq!(longer, Command::new("A").arg("b").arg("c"));
        assert_eq!(sent(&longer), b"*3\r\n$1\r\nA\r\n$1\r\nb\r\n$1\r\nc\r\n");
    }
}
