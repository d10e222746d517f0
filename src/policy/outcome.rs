//! What an answer means for its key: the tables of statuses.

use http::StatusCode;

use super::{Policy, Profile};
use crate::{
    record::{Answer, Outcome},
    refusal::{GRPC_STATUS, is_grpc},
    store::Reason,
};

/// How an execution ended, as its record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Keep,
    Release(Reason),
}

impl Ending {
    /// Nobody knows.
    pub(crate) const UNCERTAIN: Self = Self::Release(Reason::Unknown);
}

impl From<Outcome> for Ending {
    /// What somebody said explicitly.
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Keep => Self::Keep,
            Outcome::Release => Self::Release(Reason::DidNotHappen),
            Outcome::Uncertain => Self::UNCERTAIN,
        }
    }
}

/// Statuses whose meaning a policy names itself. A later word about a status replaces an earlier one.
#[derive(Clone, Debug, Default)]
pub(super) struct Statuses(Vec<(StatusCode, Outcome)>);

impl Statuses {
    pub(super) fn set(&mut self, statuses: impl IntoIterator<Item = StatusCode>, outcome: Outcome) {
        for status in statuses {
            self.0.retain(|(known, _)| *known != status);
            self.0.push((status, outcome));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn get(&self, status: StatusCode) -> Option<Outcome> {
        self.0.iter().find(|(known, _)| *known == status).map(|(_, outcome)| *outcome)
    }
}

impl Policy {
    /// What `answer` means, unless the handler said it explicitly.
    pub(crate) fn ending_of(&self, answer: &Answer) -> Ending {
        let ending = match self.statuses.get(answer.status()) {
            Some(outcome) => outcome.into(),
            None if is_grpc(answer.headers()) => of_grpc(answer),
            None => self.of_status(answer.status()),
        };
        match (&self.keep_if, ending) {
            // Not asked about a body that was too large or too slow to be seen: to release it would
            // be to run a second time because an answer was large.
            (Some(keep_if), Ending::Keep) if answer.body().is_some() && !keep_if(answer) => {
                Ending::Release(Reason::Failed)
            }
            _ => ending,
        }
    }

    fn of_status(&self, status: StatusCode) -> Ending {
        match (self.profile, status.as_u16()) {
            // A time-out or a broken hop behind the handler does not prove that nothing happened.
            (_, 408 | 502 | 504) => Ending::UNCERTAIN,
            (Profile::Api, 401 | 403 | 409 | 423 | 425 | 429 | 503) => {
                Ending::Release(Reason::DidNotHappen)
            }
            (Profile::Api, _) | (Profile::Webhook, 100..=299) => Ending::Keep,
            (Profile::Webhook, _) => Ending::Release(Reason::Failed),
        }
    }
}

/// Whether a client reads in `answer` that it happened: 2xx, and of gRPC no other code than 0.
pub(crate) fn is_success(answer: &Answer) -> bool {
    let failed = is_grpc(answer.headers()) && grpc_status(answer).is_some_and(|code| code != b"0");
    answer.status().is_success() && !failed
}

/// In the trailers or, of an answer that has no others, in the head.
fn grpc_status(answer: &Answer) -> Option<&[u8]> {
    let status = answer
        .trailers()
        .and_then(|trailers| trailers.get(GRPC_STATUS))
        .or_else(|| answer.headers().get(GRPC_STATUS));
    status.map(http::HeaderValue::as_bytes)
}

/// By gRPC's own status.
fn of_grpc(answer: &Answer) -> Ending {
    match grpc_status(answer) {
        // OK, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE
        Some(b"0" | b"3" | b"5" | b"6" | b"9" | b"11") => Ending::Keep,
        // PERMISSION_DENIED, RESOURCE_EXHAUSTED, ABORTED, UNAVAILABLE, UNAUTHENTICATED
        Some(b"7" | b"8" | b"10" | b"14" | b"16") => Ending::Release(Reason::DidNotHappen),
        // Its end was not seen because it is too long to be kept: it ran.
        None if answer.body().is_none() => Ending::Keep,
        _ => Ending::UNCERTAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scope, identity::json};

    fn api(status: u16) -> Ending {
        let status = StatusCode::from_u16(status).unwrap();
        Policy::api(Scope::everyone()).ending_of(&Answer::new(status))
    }

    fn webhook(status: u16) -> Ending {
        let status = StatusCode::from_u16(status).unwrap();
        Policy::webhook(json("/id")).ending_of(&Answer::new(status))
    }

    #[test]
    fn the_tables_are_those_of_the_design() {
        for status in 200..600 {
            let (for_api, for_webhook) = match status {
                408 | 502 | 504 => (Ending::UNCERTAIN, Ending::UNCERTAIN),
                401 | 403 | 409 | 423 | 425 | 429 | 503 => {
                    (Ending::Release(Reason::DidNotHappen), Ending::Release(Reason::Failed))
                }
                200..=299 => (Ending::Keep, Ending::Keep),
                _ => (Ending::Keep, Ending::Release(Reason::Failed)),
            };
            assert_eq!(api(status), for_api, "{status}");
            assert_eq!(webhook(status), for_webhook, "{status}");
        }
    }

    #[test]
    fn a_status_named_by_the_policy_counts_over_the_table() {
        let policy = Policy::api(Scope::everyone())
            .keep([StatusCode::CONFLICT])
            .release([StatusCode::INTERNAL_SERVER_ERROR])
            .uncertain([StatusCode::OK])
            .keep([StatusCode::OK]);
        let of = |status| policy.ending_of(&Answer::new(status));
        assert_eq!(of(StatusCode::CONFLICT), Ending::Keep);
        let did_not_happen = Ending::Release(Reason::DidNotHappen);
        assert_eq!(of(StatusCode::INTERNAL_SERVER_ERROR), did_not_happen);
        assert_eq!(of(StatusCode::OK), Ending::Keep);
    }

    #[test]
    fn keep_if_can_only_say_no() {
        let policy =
            Policy::webhook(json("/id")).keep_if(|answer| answer.body().unwrap() == "success");
        assert_eq!(policy.ending_of(&Answer::text("success")), Ending::Keep);
        assert_eq!(policy.ending_of(&Answer::text("fail")), Ending::Release(Reason::Failed));
        let timed_out = Answer::text("success").with_status(StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(policy.ending_of(&timed_out), Ending::UNCERTAIN);
        let too_large = Answer::text("fail").without_body();
        assert_eq!(policy.ending_of(&too_large), Ending::Keep, "it is not asked, and it is done");
    }

    #[test]
    fn an_answer_too_large_to_be_seen_is_not_run_again_by_keep_if() {
        let policy = Policy::webhook(json("/id")).keep_if(|answer| answer.body().is_none());
        assert_eq!(policy.ending_of(&Answer::text("seen")), Ending::Release(Reason::Failed));
        let policy = Policy::webhook(json("/id")).keep_if(|_| false);
        let unseen = Answer::text("success").without_body();
        assert_eq!(policy.ending_of(&unseen), Ending::Keep);
        let failed = unseen.with_status(StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(policy.ending_of(&failed), Ending::Release(Reason::Failed));
    }

    #[test]
    fn grpc_is_judged_by_its_own_status() {
        let of = |status: &'static str| {
            let answer = Answer::new(StatusCode::OK)
                .with_header(
                    http::header::CONTENT_TYPE,
                    http::HeaderValue::from_static("application/grpc"),
                )
                .with_header(GRPC_STATUS, http::HeaderValue::from_static(status));
            Policy::api(Scope::everyone()).ending_of(&answer)
        };
        for status in ["0", "3", "5", "6", "9", "11"] {
            assert_eq!(of(status), Ending::Keep, "{status}");
        }
        for status in ["7", "8", "10", "14", "16"] {
            assert_eq!(of(status), Ending::Release(Reason::DidNotHappen), "{status}");
        }
        for status in ["1", "2", "4", "12", "13", "15", "99", "x"] {
            assert_eq!(of(status), Ending::UNCERTAIN, "{status}");
        }
    }
}
