//! Holds the tests beside it; there is no library.
