//! Which cores the processes of a run have.

use std::fmt;

#[cfg(target_os = "linux")]
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// One core for the process that is measured, the others for Redis and the load.
#[derive(Clone, Copy)]
pub struct Cores {
    #[cfg(target_os = "linux")]
    own: CpuSet,
    #[cfg(target_os = "linux")]
    others: CpuSet,
}

#[cfg(target_os = "linux")]
impl Cores {
    /// Moves this thread to the last core that it may use. What it starts later stays there too, unless it
    /// is started [`beside`](Self::beside) it.
    ///
    /// # Errors
    ///
    /// When it may use only one.
    pub fn take() -> Result<Self, String> {
        let mut others = sched_getaffinity(THIS).map_err(|error| format!("--pin: {error}"))?;
        let may = |core: &usize| others.is_set(*core).unwrap_or(false);
        let (Some(last), 2..) =
            ((0..CpuSet::count()).rfind(may), (0..CpuSet::count()).filter(may).count())
        else {
            return Err("--pin takes two cores at least".to_owned());
        };
        let mut own = CpuSet::new();
        own.set(last).and(others.unset(last)).map_err(|error| format!("--pin: {error}"))?;
        let cores = Self { own, others };
        stay(&cores.own);
        Ok(cores)
    }

    /// Starts something on the other cores.
    pub fn beside<T>(self, start: impl FnOnce() -> T) -> T {
        stay(&self.others);
        let started = start();
        stay(&self.own);
        started
    }
}

#[cfg(target_os = "linux")]
const THIS: Pid = Pid::from_raw(0);

#[cfg(target_os = "linux")]
fn stay(cores: &CpuSet) {
    sched_setaffinity(THIS, cores).expect("a thread may stay on cores that it had");
}

#[cfg(not(target_os = "linux"))]
impl Cores {
    /// There is nothing to move a thread with.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn take() -> Result<Self, String> {
        Err("--pin is for Linux".to_owned())
    }

    /// Starts something.
    pub fn beside<T>(self, start: impl FnOnce() -> T) -> T {
        start()
    }
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cores")
    }
}
