//! Real servers, processes and faults for the tests and benches.
