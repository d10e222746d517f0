//! Fuzzes identities and fields in JSON bodies.

#![no_main]

#[path = "../../tests/fuzz/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::json_body(data);
});
