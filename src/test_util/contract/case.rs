//! One case of the suite: what is asked of the store, and a panic that says what it answered.
