//! Servers and clients for the tests of this member.
