//! The fuzz targets with any compiler: over their corpus, and over mutations of it that are the same
//! in every run.

mod targets;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

/// `cargo fuzz` makes millions; these are for what a change breaks grossly.
const MUTATIONS: usize = 4_000;

/// SplitMix64: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, or zero.
    fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { usize::try_from(self.next() % bound as u64).unwrap() }
    }

    fn byte(&mut self) -> u8 {
        const TELLING: &[u8] = b"\"\\{}[],:&=%+<>!-?;/#x0e. \n\0\xff";
        if self.below(2) == 0 { TELLING[self.below(TELLING.len())] } else { self.next() as u8 }
    }

    fn mutate(&mut self, data: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(data.len() + 1);
            let to = at + self.below((data.len() - at).min(16) + 1);
            match self.below(6) {
                0 => data.insert(at, self.byte()),
                1 => drop(data.drain(at..to)),
                2 => data.extend_from_within(at..to),
                3 => {
                    let from = self.below(other.len() + 1);
                    let piece = &other[from..other.len().min(from + self.below(24))];
                    drop(data.splice(at..to, piece.iter().copied()));
                }
                4 if at < data.len() => data[at] ^= 1 << self.below(8),
                _ if at < data.len() => data[at] = self.byte(),
                _ => data.push(self.byte()),
            }
        }
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    // The file system's order is nobody's.
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Runs it, and shows the input if it fails.
fn run(target: fn(&[u8]) -> bool, data: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| target(data))).unwrap_or_else(|panic| {
        eprintln!("it failed on b\"{}\"", data.escape_ascii());
        resume_unwind(panic)
    })
}

fn fuzz(name: &str, target: fn(&[u8]) -> bool) {
    let corpus = corpus(name);
    let taken = corpus.iter().filter(|data| run(target, data)).count();
    assert!(taken > 0, "none of the corpus is right");
    assert!(taken < corpus.len(), "none of the corpus is wrong");
    let mut random = Random(0x7dae);
    let mut taken = 0;
    for _ in 0..MUTATIONS {
        let mut data = corpus[random.below(corpus.len())].clone();
        let other = &corpus[random.below(corpus.len())];
        random.mutate(&mut data, other);
        taken += usize::from(run(target, &data));
    }
    assert!((1..MUTATIONS).contains(&taken), "{taken} of {MUTATIONS} mutations were taken");
}

#[test]
fn any_header_field_is_an_identity_or_is_refused() {
    fuzz("header", targets::header_field);
}

#[test]
fn any_body_is_read_as_json_or_is_refused() {
    fuzz("json", targets::json_body);
}

#[test]
fn any_body_is_read_as_a_form_or_is_refused() {
    fuzz("form", targets::form_body);
}

#[test]
fn any_body_is_read_as_xml_or_is_refused() {
    fuzz("xml", targets::xml_body);
}

#[test]
fn any_stored_bytes_are_an_answer_or_are_refused() {
    fuzz("answer_codec", targets::answer_codec);
}
