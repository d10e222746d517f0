//! What a server says about itself in `INFO`.

use redis::Value;

use super::resp::Command;

/// The text of `INFO`, read field by field.
#[derive(Clone, Debug)]
pub(super) struct Info(String);

impl Info {
    pub(super) fn command() -> Command {
        // Without sections, since versions before 7.0 take only one.
        Command::new("INFO")
    }

    /// `None` where the server does not say: many managed ones, and users without the right.
    pub(super) fn read(answer: Value) -> Option<Self> {
        let text = match answer {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok()?,
            Value::VerbatimString { text, .. } => text,
            _ => return None,
        };
        Some(Self(text))
    }

    /// A field that is there and not empty.
    pub(super) fn get(&self, field: &str) -> Option<&str> {
        let value = |line: &'_ str| {
            let rest = line.strip_prefix(field)?.strip_prefix(':')?;
            Some(line.len() - rest.len())
        };
        let line = self.0.lines().find(|line| value(line).is_some())?;
        line.get(value(line)?..).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    /// Which server it is, and which history of data it has: another one after a restart, a failover
    /// or a replacement.
    pub(super) fn identity(&self) -> Option<String> {
        let (run, data) = (self.get("run_id")?, self.get("master_replid")?);
        Some(format!("{run}:{data}"))
    }

    pub(super) fn is_replica(&self) -> bool {
        self.get("role").is_some_and(|role| role != "master")
    }
}

#[cfg(test)]
impl Info {
    pub(super) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_its_whole_name_and_what_is_empty_is_not_there() {
        let info = Info::of(
            "# Server\r\nrun_id:abc\r\nmaster_replid:d\r\nmaster_replid2:e\r\nx:\r\nn:7\r\n",
        );
        assert_eq!(info.get("run_id"), Some("abc"));
        assert_eq!(info.get("run"), None);
        assert_eq!(info.get("x"), None);
        assert_eq!(info.number("n"), Some(7));
        assert_eq!(info.identity().as_deref(), Some("abc:d"));
        assert_eq!(Info::of("run_id:abc").identity(), None);
        assert!(Info::read(Value::Int(1)).is_none());
    }
}
