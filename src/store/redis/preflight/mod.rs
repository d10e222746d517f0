//! Whether a server is one that records can be trusted to: one report that a person can read.

mod dry_run;
mod inspect;
mod run;

use std::{error::Error, fmt, time::Duration};

use dry_run::dry_run;
use inspect::fsync;
#[cfg(feature = "redis-cluster")]
use inspect::slots;
pub(super) use inspect::{clock, inspect};

/// What was found out about the servers of a [`RedisStore`](crate::RedisStore), and what to do about
/// it: see [`RedisStore::preflight`](crate::RedisStore::preflight).
///
/// Displayed, it is a report for a person, a line for each finding.
#[derive(Clone, PartialEq, Eq)]
pub struct Preflight {
    findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Host and port of the server it is about.
    pub server: String,
    /// What was looked at: `connection`, `version`, `role`, `eviction`, `memory`, `persistence`,
    /// `replicas`, `slots`, `scripts`, `clock`, `identity`.
    pub what: &'static str,
    /// How it is.
    pub level: Level,
    /// In words: what is so, what follows, and what to do.
    pub detail: String,
}

/// How one finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Fine,
    /// The server does not say, as many managed ones do not: look where it is configured.
    Hidden,
    /// Records may be lost, or not be written, in events that are known and rare.
    Warning,
    /// Records will be lost or cannot be written: operations run twice, or not at all.
    Error,
}

/// What the owner of a server has accepted by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Accepted {
    pub(super) eviction: Option<String>,
    pub(super) unguarded_failover: bool,
    /// So many replicas are to have each claim.
    pub(super) wait_for: u32,
    /// The shortest lease after which something is taken over.
    pub(super) takeover: Option<Duration>,
}

impl Preflight {
    pub(super) fn new(findings: Vec<Finding>) -> Self {
        Self { findings }
    }

    /// All that was looked at.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether there is no error among the findings.
    pub fn is_passed(&self) -> bool {
        self.worst() < Level::Error
    }

    /// The worst of the findings.
    pub fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Fine)
    }

    /// The report itself as an error, if there is an error among the findings: for a program that
    /// should rather not start.
    ///
    /// # Errors
    ///
    /// When [`is_passed`](Self::is_passed) is false.
    pub fn passed(self) -> Result<Self, Self> {
        if self.is_passed() { Ok(self) } else { Err(self) }
    }

    /// What is worth to be told again when it changes.
    pub(super) fn gist(&self) -> Vec<(&'static str, Level)> {
        let bad = self.findings.iter().filter(|finding| finding.level >= Level::Warning);
        bad.map(|finding| (finding.what, finding.level)).collect()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "fine",
            Self::Hidden => "hidden",
            Self::Warning => "warning",
            Self::Error => "ERROR",
        })
    }
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut server = "";
        for finding in &self.findings {
            if finding.server != server {
                let line = if server.is_empty() { "" } else { "\n" };
                server = &finding.server;
                write!(f, "{line}Redis at {server}:")?;
            }
            write!(f, "\n  {:<8} {:<12} {}", finding.level, finding.what, finding.detail)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Preflight {
    /// The report too: what is printed where `main` returns it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for Preflight {}

/// The findings about one server, as they are made.
pub(super) struct Findings<'a> {
    server: &'a str,
    found: Vec<Finding>,
}

impl<'a> Findings<'a> {
    pub(super) fn about(server: &'a str) -> Self {
        Self { server, found: Vec::new() }
    }

    pub(super) fn add(&mut self, what: &'static str, level: Level, detail: impl Into<String>) {
        let (server, detail) = (self.server.to_owned(), detail.into());
        self.found.push(Finding { server, what, level, detail });
    }

    pub(super) fn into_vec(self) -> Vec<Finding> {
        self.found
    }
}
