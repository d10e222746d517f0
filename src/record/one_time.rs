//! The one-time token: 128 random bits, and how they are written.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rand::RngExt;

/// The domain of the names of tokens that stand for themselves.
const NAME_CONTEXT: &str = "tower-idempotency 2026-11 one-time token name";

/// A one-time token: 16 random bytes. Whoever brings it may act once.
///
/// It is never shown by `Debug`; [`to_text`](Self::to_text) is what its owner is given.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OneTimeToken([u8; 16]);

impl OneTimeToken {
    /// A new token from the operating system's randomness: 128 bits of it.
    pub fn random() -> Self {
        // As one number: of an array each byte would take four.
        Self(rand::rng().random::<u128>().to_ne_bytes())
    }

    /// A token of these bytes, for stores and their tests.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the token.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The token as it is handed out and sent: base64url without padding, 22 characters.
    ///
    /// Danger: whoever reads it may act with it. It belongs into the answer to its owner, with
    /// `Cache-Control: no-store`, and into no log.
    pub fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// The token that this is the text of; `None` if it is none.
    pub fn from_text(text: impl AsRef<[u8]>) -> Option<Self> {
        let mut bytes = [0; 18];
        // Refuses spare bits, so that a token has one text.
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
        bytes[..length].try_into().ok().map(Self)
    }

    /// What stands for a token where it may be seen: in labels, in rows, in what handlers are told. It
    /// is the same in every process and under every secret, and does not give the token away.
    pub(crate) fn name(&self) -> String {
        let hash = blake3::derive_key(NAME_CONTEXT, &self.0);
        URL_SAFE_NO_PAD.encode(&hash[..16])
    }
}

impl fmt::Debug for OneTimeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneTimeToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_text_and_a_text_one_token() {
        let token = OneTimeToken::from_bytes([0xfb; 16]);
        assert_eq!(token.to_text(), "-_v7-_v7-_v7-_v7-_v7-w");
        assert_eq!(OneTimeToken::from_text(token.to_text()), Some(token));
        for _ in 0..100 {
            let token = OneTimeToken::random();
            assert_eq!(token.to_text().len(), 22);
            assert_eq!(OneTimeToken::from_text(token.to_text()), Some(token));
        }
        let long = "A".repeat(10_000);
        for wrong in [
            "",
            "A",
            "-_v7-_v7-_v7-_v7-_v7-x",
            "-_v7-_v7-_v7-_v7-_v7-w=",
            "-_v7-_v7-_v7-_v7-_v7-w==",
            "-_v7-_v7-_v7-_v7-_v7",
            "-_v7-_v7-_v7-_v7-_v7-_v7",
            "+/v7+/v7+/v7+/v7+/v7+w",
            " -_v7-_v7-_v7-_v7-_v7-w",
            "-_v7-_v7-_v7-_v7-_v7-\u{e9}",
            &long,
        ] {
            assert_eq!(OneTimeToken::from_text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_may_be_seen_of_a_token_does_not_give_it_away() {
        let token = OneTimeToken::from_bytes([7; 16]);
        assert_eq!(format!("{token:?}"), "OneTimeToken(..)");
        // A name that changes is a row that is not found.
        assert_eq!(token.name(), "EiZZAWrca8s8lE6kEUu4bA");
        assert_ne!(token.name(), OneTimeToken::from_bytes([8; 16]).name());
        assert!(!token.name().contains(&token.to_text()));
    }
}
