//! What errors of the client and of the server mean, and what to do about them.

use std::io;

use redis::{ServerError, Value};

use super::{reply, session::Broken};

use crate::store::{StoreError, StoreErrorKind};

/// The codes with which a server refuses, and what to do about each.
const REFUSALS: [(&str, &str); 17] = [
    ("READONLY", "this node is a replica: the URL must lead to the primary"),
    ("OOM", "it is at its maxmemory: give it room, and never evict (maxmemory-policy noeviction)"),
    ("NOREPLICAS", "too few replicas are in reach for min-replicas-to-write: look after them"),
    ("MISCONF", "it cannot persist and therefore takes no writes: look at its disk and its log"),
    ("LOADING", "it is loading its data: it will be there shortly"),
    ("BUSY", "a script or a function has been running for too long on it: end that one"),
    ("MASTERDOWN", "this node is a replica that has lost its primary"),
    (
        "NOPERM",
        "its user needs +eval +evalsha +getrange +exists +set +time +pttl and ~prefix:*, +scan to list, \
         +info to be told of changes, +select for a database but 0",
    ),
    ("NOAUTH", "it demands a password: put it into the URL"),
    ("WRONGPASS", "it does not take the name or the password of the URL"),
    ("MOVED", "it is a node of a cluster, and this store talks to one server"),
    ("ASK", "it is a node of a cluster, and this store talks to one server"),
    ("CROSSSLOT", "it is a node of a cluster, and this store talks to one server"),
    ("CLUSTERDOWN", "its cluster is down"),
    ("TRYAGAIN", "its cluster is moving slots"),
    ("NOPROTO", "it does not speak the protocol that the URL asks for"),
    ("UNKILLABLE", "a script that has written is running on it"),
];

/// The server does not know the script of an `EVALSHA`.
pub(super) fn is_no_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// This node takes no writes any more: a new connection may lead to the one that does.
pub(super) fn is_read_only(error: &ServerError) -> bool {
    code_of(error) == "READONLY"
}

/// This node of a cluster has done nothing: another one has the slot, or will have it.
#[cfg(feature = "redis-cluster")]
pub(super) fn is_elsewhere(error: &ServerError) -> bool {
    ["MOVED", "ASK", "TRYAGAIN"].contains(&code_of(error))
}

/// What is there under this name is no string.
pub(super) fn is_wrong_type(error: &ServerError) -> bool {
    code_of(error) == "WRONGTYPE"
}

/// The server answered `what` with an error.
pub(super) fn by_server(what: &str, error: &ServerError) -> StoreError {
    let code = code_of(error);
    let advice = REFUSALS.iter().find(|(known, _)| *known == code);
    let message = match advice {
        // Which right it is that is missing.
        Some((code @ "NOPERM", advice)) if error.details().is_some() => {
            format!("Redis refused {what} with {code} ({}): {advice}", detail_of(error))
        }
        Some((code, advice)) => format!("Redis refused {what} with {code}: {advice}"),
        None => format!("Redis refused {what} with {code}: {}", detail_of(error)),
    };
    StoreError::new(StoreErrorKind::Refused, message)
}

/// The connection to `address` has come to its end before `what` was answered.
pub(super) fn by_connection(address: &str, what: &str, broken: &Broken) -> StoreError {
    match broken {
        Broken::Io(kind_of_end, message) => {
            let timed_out = *kind_of_end == io::ErrorKind::TimedOut;
            let kind =
                if timed_out { StoreErrorKind::Timeout } else { StoreErrorKind::Unreachable };
            let advice = about(message, *kind_of_end);
            StoreError::new(kind, format!("no answer from Redis at {address}: {message}: {advice}"))
        }
        Broken::Garbled => reply::garbled(what),
    }
}

/// What to look at when a connection ends so. What TLS has to say is known by its words alone, which are those
/// of rustls.
fn about(message: &str, kind: io::ErrorKind) -> &'static str {
    const CERTIFICATES: [(&str, &str); 5] = [
        ("UnknownIssuer", "name the authority that issued it: RedisTls::authority"),
        ("not valid for name", "the URL must name the server as its certificate does"),
        ("certificate expired", "it needs a new one, or one of the two clocks is wrong"),
        ("CertificateRequired", "it demands a certificate of yours: RedisTls::client"),
        ("InvalidContentType", "it does not speak TLS there: redis://, or the port for TLS"),
    ];
    let known = CERTIFICATES.iter().find(|(words, _)| message.contains(words));
    match (known, kind) {
        (Some((_, advice)), _) => advice,
        (None, io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof) => {
            "is it there, and does the URL lead to it (rediss:// where it speaks TLS)?"
        }
        (None, _) => "is it there, and does the URL lead to it?",
    }
}

/// The code of an error. Redis 6.2 hides that of a command inside a script in the text: `ERR Error
/// running script (call to f_..): @user_script:38: -OOM command not allowed ..`.
fn code_of(error: &ServerError) -> &str {
    let code = error.code();
    if code != "ERR" {
        return code;
    }
    let text = error.details().unwrap_or_default();
    let inner = text.match_indices('-').find_map(|(at, _)| {
        let rest = &text[at + 1..];
        REFUSALS.iter().find(|(known, _)| {
            rest.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        })
    });
    inner.map_or(code, |(known, _)| known)
}

fn detail_of(error: &ServerError) -> &str {
    without_arguments(error.details().unwrap_or("it says nothing more"))
}

/// A server that does not know a command repeats the arguments it was given, and claim tokens are
/// among ours.
fn without_arguments(detail: &str) -> &str {
    detail.split(", with args beginning with").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_error(code: &str, detail: &str) -> ServerError {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        error.into_server_errors().unwrap()[0].1.clone()
    }

    #[test]
    fn a_code_that_redis_6_2_hides_in_the_text_is_found() {
        let text = "Error running script (call to f_00): @user_script:44: @user_script: 44: -OOM \
                    command not allowed when used memory > 'maxmemory'.";
        let error = by_server("claim", &server_error("ERR", text));
        assert!(error.is_refused());
        assert!(error.to_string().contains("OOM"), "{error}");
        assert!(error.to_string().contains("noeviction"), "{error}");
        let other = by_server("claim", &server_error("ERR", "no-OOMpah -READONLYish"));
        assert!(other.to_string().contains("with ERR"), "{other}");
    }

    #[test]
    fn the_arguments_of_an_unknown_command_are_not_repeated() {
        let text = "unknown command 'EVALSHA', with args beginning with: 'sha' 'TOKEN'";
        let error = by_server("claim", &server_error("ERR", text));
        assert!(error.to_string().contains("unknown command 'EVALSHA'"), "{error}");
        assert!(!error.to_string().contains("TOKEN"), "{error}");
    }

    #[test]
    fn a_demoted_node_is_known_by_its_code_in_both_forms() {
        assert!(is_read_only(&server_error("READONLY", "You can't write")));
        assert!(is_read_only(&server_error("ERR", "Error running script: -READONLY You can't")));
        assert!(!is_read_only(&server_error("ERR", "READONLY")));
    }
}
