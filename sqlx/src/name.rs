//! Names of tables and columns, which stand in SQL as they are and must therefore be harmless.

/// Leaves room for what is added in names of indexes; PostgreSQL cuts at 63.
const BYTES_AT_MOST: usize = 48;

/// Panics, when a constant is built at compile time, unless `name` is a plain identifier.
pub(crate) const fn check(name: &str) {
    let bytes = name.as_bytes();
    assert!(!bytes.is_empty(), "a name of a table or column must not be empty");
    assert!(bytes.len() <= BYTES_AT_MOST, "a name of a table or column has 48 bytes at most");
    assert!(!bytes[0].is_ascii_digit(), "a name of a table or column must not begin with a digit");
    let mut at = 0;
    while at < bytes.len() {
        assert!(
            bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_',
            "a name of a table or column is made of a-z, A-Z, 0-9 and _"
        );
        at += 1;
    }
}
