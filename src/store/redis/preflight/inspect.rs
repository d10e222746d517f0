//! What a server's own words about itself mean for records.

use std::time::{Duration, SystemTime};

use redis::Value;

use super::{Accepted, Findings, Level};
use crate::store::redis::info::Info;

/// Clocks that differ by more are worth a word.
const CLOCKS_MAY_DIFFER: Duration = Duration::from_secs(1);

/// What `INFO` tells.
pub(in crate::store::redis) fn inspect(
    findings: &mut Findings<'_>,
    info: Option<&Info>,
    in_cluster: bool,
    accepted: &Accepted,
) {
    let Some(info) = info else {
        findings.add(
            "identity",
            Level::Hidden,
            "INFO is refused, so neither version, eviction and persistence are known, nor would a \
             restart that lost data be noticed: grant +info, or look where the server is configured",
        );
        return;
    };
    version(findings, info);
    role(findings, info, in_cluster);
    eviction(findings, info, accepted);
    memory(findings, info);
    persistence(findings, info);
    replicas(findings, info, accepted);
    match info.identity() {
        Some(_) => findings.add("identity", Level::Fine, "told: a change of it is noticed"),
        None => findings.add(
            "identity",
            Level::Hidden,
            "no run id is told, so that a restart that lost data is not noticed by it",
        ),
    }
}

fn version(findings: &mut Findings<'_>, info: &Info) {
    let valkey = info.get("valkey_version");
    let Some(version) = valkey.or_else(|| info.get("redis_version")) else {
        return findings.add("version", Level::Hidden, "not told: 6.2 is the oldest that will do");
    };
    let name = if valkey.is_some() { "Valkey" } else { "Redis" };
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0_u32));
    let mut next = || numbers.next().unwrap_or(0);
    let number = (next(), next(), next());
    if number < (6, 2, 0) {
        let detail = format!("{name} {version}: 6.2 is the oldest that will do; replace it");
        findings.add("version", Level::Error, detail);
    } else if number < (6, 2, 14) {
        let detail = format!(
            "{name} {version}: before 6.2.14 scripts may not heed min-replicas-to-write; replace it"
        );
        findings.add("version", Level::Warning, detail);
    } else {
        findings.add("version", Level::Fine, format!("{name} {version}"));
    }
}

fn role(findings: &mut Findings<'_>, info: &Info, in_cluster: bool) {
    match info.get("role") {
        None => findings.add("role", Level::Hidden, "not told: it must be the primary"),
        Some("master") => findings.add("role", Level::Fine, "primary"),
        Some(role) => {
            let detail = format!("{role}: it takes no writes; the URL must lead to the primary");
            findings.add("role", Level::Error, detail);
        }
    }
    if info.get("cluster_enabled") == Some("1") && !in_cluster {
        findings.add(
            "role",
            Level::Error,
            "a node of a cluster: it has some of the keys only; use RedisServers::cluster (feature \
             redis-cluster)",
        );
    }
}

fn eviction(findings: &mut Findings<'_>, info: &Info, accepted: &Accepted) {
    match info.get("maxmemory_policy") {
        None => findings.add(
            "eviction",
            Level::Hidden,
            "not told: maxmemory-policy must be noeviction; many managed servers have volatile-lru, \
             which forgets records",
        ),
        Some("noeviction") => findings.add("eviction", Level::Fine, "noeviction"),
        Some(policy) if accepted.eviction.as_deref() == Some(policy) => findings.add(
            "eviction",
            Level::Warning,
            format!("{policy}, which was accepted: a record that is evicted runs again"),
        ),
        Some(policy) => findings.add(
            "eviction",
            Level::Error,
            format!(
                "maxmemory-policy is {policy}, so that a full server forgets records, and what is \
                 forgotten runs again: set it to noeviction, or accept it with \
                 RedisStore::accept_eviction({policy:?})"
            ),
        ),
    }
    if let Some(evicted @ 1..) = info.number("evicted_keys") {
        let detail =
            format!("{evicted} keys were evicted since it started: records may be among them");
        findings.add("eviction", Level::Warning, detail);
    }
}

fn memory(findings: &mut Findings<'_>, info: &Info) {
    let (Some(used), Some(most)) = (info.number("used_memory"), info.number("maxmemory")) else {
        return findings.add("memory", Level::Hidden, "not told: watch it where it is configured");
    };
    match most {
        0 => findings.add(
            "memory",
            Level::Fine,
            format!("{} MiB used, no maxmemory: the machine's is the limit", used >> 20),
        ),
        most if used >= most / 5 * 4 => findings.add(
            "memory",
            Level::Warning,
            format!(
                "{} of {} MiB used: a full server refuses every new operation; give it room",
                used >> 20,
                most >> 20
            ),
        ),
        most => {
            let detail = format!("{} of {} MiB used", used >> 20, most >> 20);
            findings.add("memory", Level::Fine, detail);
        }
    }
}

fn persistence(findings: &mut Findings<'_>, info: &Info) {
    if info.get("loading") == Some("1") {
        findings.add(
            "persistence",
            Level::Error,
            "it is loading its data: it will be there shortly",
        );
    }
    let failed = |field| info.get(field).is_some_and(|status| status != "ok");
    if failed("aof_last_write_status") || failed("rdb_last_bgsave_status") {
        findings.add(
            "persistence",
            Level::Error,
            "its last write to the disk failed, and then it takes no writes (MISCONF): look at its disk \
             and its log",
        );
    }
    match info.get("aof_enabled") {
        None => findings.add(
            "persistence",
            Level::Hidden,
            "not told: without appendonly a restart forgets records, and what is forgotten runs again",
        ),
        Some("1") => findings.add("persistence", Level::Fine, "appendonly"),
        Some(_) => findings.add(
            "persistence",
            Level::Warning,
            "appendonly is off: a restart forgets all records since the last snapshot, or all there are, \
             and what is forgotten runs again: set appendonly yes",
        ),
    }
}

/// How often what is appended reaches the disk: asked for besides, since `INFO` does not tell.
pub(in crate::store::redis) fn fsync(
    findings: &mut Findings<'_>,
    info: Option<&Info>,
    answer: Option<Value>,
) {
    if info.and_then(|info| info.get("aof_enabled")) != Some("1") {
        return;
    }
    let setting = match answer {
        Some(Value::Array(pair)) => pair.into_iter().nth(1),
        Some(Value::Map(pairs)) => pairs.into_iter().next().map(|(_, value)| value),
        _ => None,
    };
    match setting {
        Some(Value::BulkString(setting)) if setting == b"always" => {
            findings.add("persistence", Level::Fine, "appendfsync always: a power cut loses nothing");
        }
        Some(Value::BulkString(setting)) if setting == b"everysec" => findings.add(
            "persistence",
            Level::Fine,
            "appendfsync everysec: a process that dies loses nothing, a power cut up to two seconds",
        ),
        Some(Value::BulkString(_)) => findings.add(
            "persistence",
            Level::Warning,
            "appendfsync no: a power cut loses what the machine had not written, often half a minute",
        ),
        _ => findings.add(
            "persistence",
            Level::Hidden,
            "CONFIG is refused, so appendfsync is not known: everysec is usual, always loses nothing",
        ),
    }
}

fn replicas(findings: &mut Findings<'_>, info: &Info, accepted: &Accepted) {
    if info.is_replica() {
        return;
    }
    let Some(replicas) = info.number("connected_slaves") else {
        return findings.add(
            "replicas",
            Level::Hidden,
            "not told: with a failover min-replicas-to-write must be 1 or more",
        );
    };
    if replicas < u64::from(accepted.wait_for) {
        let detail = format!(
            "{replicas}, and RedisStore::wait_for_replicas({}) refuses every claim: add replicas",
            accepted.wait_for
        );
        findings.add("replicas", Level::Error, detail);
    }
    // The field is there only where min-replicas-to-write is set.
    match (replicas, info.number("min_slaves_good_slaves")) {
        (_, Some(0)) => findings.add(
            "replicas",
            Level::Error,
            "min-replicas-to-write is set and no replica is good: it takes no writes (NOREPLICAS)",
        ),
        (replicas, Some(good)) => findings.add(
            "replicas",
            Level::Fine,
            format!("{replicas}, {good} of them good, and min-replicas-to-write is set"),
        ),
        (0, None) => findings.add(
            "replicas",
            Level::Fine,
            "none: whatever the disk does not keep is lost with the machine",
        ),
        (replicas, None) => {
            let accepted = accepted.unguarded_failover;
            let level = if accepted { Level::Warning } else { Level::Error };
            let how = if accepted {
                "which was accepted"
            } else {
                "set it to 1 and min-replicas-max-lag to 2, or accept it with \
                 RedisStore::accept_unguarded_failover"
            };
            let detail = format!(
                "{replicas}, and min-replicas-to-write is not set: in a failover the old primary goes on \
                 granting for seconds beside the new one, and the same key runs on both; {how}"
            );
            findings.add("replicas", level, detail);
        }
    }
}

/// Whether all of a cluster is there.
#[cfg(feature = "redis-cluster")]
pub(in crate::store::redis) fn slots(findings: &mut Findings<'_>, covered: Option<usize>) {
    let all = usize::from(crate::store::redis::slot::SLOTS);
    match covered {
        None => {}
        Some(covered) if covered == all => {
            findings.add("slots", Level::Fine, "each slot of its cluster has a primary");
        }
        Some(covered) => {
            let detail = format!("{} slots of its cluster have no primary", all - covered);
            findings.add("slots", Level::Error, detail);
        }
    }
}

/// How far the server's clock is from this machine's. It was asked, and `took` passed until it had
/// answered.
pub(in crate::store::redis) fn clock(
    findings: &mut Findings<'_>,
    server_ms: u64,
    took: Duration,
    accepted: &Accepted,
) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let server = Duration::from_millis(server_ms);
    // The answer was given at some moment while it was waited for.
    let apart = now.abs_diff(server).saturating_sub(took);
    let shown = format!("{} ms from this machine's", apart.as_millis());
    match accepted.takeover {
        Some(lease) if apart > lease / 3 => findings.add(
            "clock",
            Level::Error,
            format!(
                "{shown}: more than a third of the lease after which abandoned operations are taken over. \
                 If one of several servers is off, a failover ends leases too early: set the clocks"
            ),
        ),
        _ if apart > CLOCKS_MAY_DIFFER => findings.add(
            "clock",
            Level::Warning,
            format!(
                "{shown}: leases are judged by the server's clock alone, but one of both is wrong, and a \
                 failover to a server with another clock shortens or lengthens them: set the clocks"
            ),
        ),
        _ => findings.add("clock", Level::Fine, shown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The levels at which something is found of a server that says this.
    fn levels(what: &str, text: &str, accepted: &Accepted) -> Vec<Level> {
        let mut findings = Findings::about("here");
        inspect(&mut findings, Some(&Info::of(text)), false, accepted);
        let found = findings.into_vec().into_iter().filter(|finding| finding.what == what);
        found.map(|finding| finding.level).collect()
    }

    #[test]
    fn versions_count_from_6_2_and_a_name_of_valkeys_own_before_the_one_it_borrows() {
        for (text, level) in [
            ("redis_version:6.0.16", Level::Error),
            ("redis_version:6.2.5", Level::Warning),
            ("redis_version:6.2.14", Level::Fine),
            ("redis_version:7.0.15", Level::Fine),
            ("redis_version:10.0.0-rc1", Level::Fine),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.2", Level::Fine),
            ("os:Linux", Level::Hidden),
        ] {
            assert_eq!(levels("version", text, &Accepted::default()), [level], "{text}");
        }
    }

    #[test]
    fn what_is_not_told_is_hidden_and_never_fine() {
        for what in ["version", "role", "eviction", "memory", "persistence", "replicas", "identity"]
        {
            assert_eq!(levels(what, "os:Linux", &Accepted::default()), [Level::Hidden], "{what}");
        }
    }

    #[test]
    fn a_nearly_full_server_and_one_that_has_evicted_are_warned_of() {
        let none = Accepted::default();
        let memory = |used, most| format!("used_memory:{used}\r\nmaxmemory:{most}\r\n");
        assert_eq!(levels("memory", &memory(79, 100), &none), [Level::Fine]);
        assert_eq!(levels("memory", &memory(80, 100), &none), [Level::Warning]);
        assert_eq!(levels("memory", &memory(80, 0), &none), [Level::Fine]);
        let evicted = "maxmemory_policy:noeviction\r\nevicted_keys:3";
        assert_eq!(levels("eviction", evicted, &none), [Level::Fine, Level::Warning]);
    }

    #[test]
    fn a_failed_write_to_the_disk_is_an_error() {
        for field in ["aof_last_write_status", "rdb_last_bgsave_status"] {
            let broken = format!("aof_enabled:1\r\n{field}:err");
            let none = Accepted::default();
            assert_eq!(levels("persistence", &broken, &none), [Level::Error, Level::Fine]);
        }
    }

    #[test]
    fn f18_a_clock_that_is_off_is_a_warning_and_an_error_where_something_is_taken_over() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let level = |server: Duration, took, takeover| {
            let mut findings = Findings::about("here");
            let accepted = Accepted { takeover, ..Accepted::default() };
            let server_ms = u64::try_from(server.as_millis()).unwrap();
            clock(&mut findings, server_ms, took, &accepted);
            findings.into_vec()[0].level
        };
        let (second, lease) = (Duration::from_secs(1), Some(Duration::from_secs(30)));
        for off in [now + 5 * second, now - 5 * second] {
            assert_eq!(level(off, second / 10, None), Level::Warning);
            assert_eq!(level(off, second / 10, lease), Level::Warning, "less than a third");
            assert_eq!(level(off, 6 * second, None), Level::Fine, "it may be the way there");
        }
        for off in [now + 11 * second, now - 11 * second] {
            assert_eq!(level(off, second / 10, lease), Level::Error);
        }
        assert_eq!(level(now, second / 10, lease), Level::Fine);
    }
}
