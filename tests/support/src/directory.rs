//! A directory for one test, gone when the test is over.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// A directory that nobody else uses, removed when it is dropped.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// A new, empty one.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    #[expect(clippy::new_without_default, reason = "it makes something on the disk")]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("tower-idempotency-{}-{count}", process::id());
            let path = env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left behind by a process of the same number that was killed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot make {}: {error}", path.display()),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
