//! What an API has to publish about its keys, made from its rules.

use std::{fmt::Write, time::Duration};

use http::{Method, StatusCode};

use super::{Rule, Rules};
use crate::{
    fingerprint::Compared,
    identity::IDENTITY_BYTES_AT_MOST,
    policy::{Demand, Ending, OnAbandoned, Policy, Profile},
    record::Answer,
    refusal::{Refusal, RefusalKind},
};

impl Rules {
    /// What clients have to know about their keys, in Markdown, a paragraph for each rule: which
    /// requests have one, where it stands and how it is written, whose it is, what is compared, how long
    /// answers are kept, and what a duplicate hears.
    ///
    /// draft-ietf-httpapi-idempotency-key-header-07, section 2.5.2, demands of a server that it
    /// publishes this. Print it into the documentation of the API; a test can hold the two together.
    ///
    /// What a `verify` and a `keep_if` demand is not in it. [`Policy::refuse_with`] is asked for the
    /// status of its refusals.
    ///
    /// # Example: an API
    ///
    /// ```
    /// use tower_idempotency::{Policy, Rule, Rules, Scope};
    ///
    /// let policy = Policy::api(Scope::header("X-Tenant"));
    /// let rules = Rules::from(Rule::new("pay", policy).path("/payments"));
    /// let text = rules.describe();
    /// assert!(text.starts_with("**POST, PATCH `/payments`** (rule `pay`): a request needs a key"));
    /// assert!(text.contains("1 to 255 bytes, a structured-field string"));
    /// assert!(text.contains("kept for 24 hours"));
    /// ```
    pub fn describe(&self) -> String {
        self.iter().map(describe).collect::<Vec<_>>().join("\n\n")
    }
}

fn describe(rule: &Rule) -> String {
    let policy = rule.policy();
    let methods: Vec<_> = rule.all_methods().iter().map(Method::as_str).collect();
    let (open, place) = match rule.pattern() {
        Some(pattern) => ("", format!(" `{pattern}`")),
        None => ("every ", String::new()),
    };
    let mut text = format!("**{open}{}{place}** (rule `{}`): ", methods.join(", "), rule.name());
    if policy.observe {
        text.push_str(
            "only observed for now: every request runs, one that comes again too. Later: ",
        );
    }
    for sentence in [key(policy), scope(policy), compared(policy), kept(policy), duplicate(policy)]
    {
        text.push_str(&sentence);
        text.push(' ');
    }
    text.push_str(&unknown(policy));
    text
}

/// Where the key goes, how it is written, and what becomes of a request without.
fn key(policy: &Policy) -> String {
    if let Some(demand) = &policy.token {
        return token(policy, demand);
    }
    let may = if policy.optional { "may have" } else { "needs" };
    let mut text = format!(
        "a request {may} a key, its {}: 1 to {IDENTITY_BYTES_AT_MOST} bytes",
        policy.identity.describe()
    );
    if let Some(syntax) = policy.identity.syntax() {
        let _ = write!(text, ", {syntax}");
    }
    let status = refused(policy, RefusalKind::IdentityMalformed);
    let _ = match policy.optional {
        true => write!(
            text,
            ". One without is not protected; one with a malformed key is refused with {status}."
        ),
        false => {
            write!(text, ". One without, or with a malformed one, is refused with {status}.")
        }
    };
    if let Some(business_key) = &policy.business_key {
        let _ = write!(
            text,
            " What it is about is its {}: another key for the same is the same operation, and the \
             same key for something else is refused with {}.",
            business_key.describe(),
            refused(policy, RefusalKind::Mismatch)
        );
    }
    text
}

/// The same where the key is a one-time token.
fn token(policy: &Policy, demand: &Demand) -> String {
    let mut text = format!(
        "a request needs a one-time token as its key, its {}: 22 characters, from {}. One without is \
         refused with {}; one whose token is unknown, has expired or is another's with {}.",
        demand.place(),
        demand.from(),
        refused(policy, RefusalKind::TokenMissing),
        refused(policy, RefusalKind::TokenUnknown)
    );
    if let Some(business_key) = &policy.business_key {
        let _ = write!(
            text,
            " It must have been issued for what the request is about, its {}.",
            business_key.describe()
        );
    }
    if let Some(caller) = demand.bound_to() {
        let _ = write!(text, " Tokens {caller}.");
    }
    text
}

fn scope(policy: &Policy) -> String {
    format!("Keys {}.", policy.scope.describe())
}

fn compared(policy: &Policy) -> String {
    match &policy.compared {
        Compared::Nothing => "Nothing else is compared: whatever a request with a known key says, \
             it is answered from the first."
            .to_owned(),
        compared => format!(
            "When a key comes again, these must be the same, or it is refused with {}: {}.",
            refused(policy, RefusalKind::Mismatch),
            compared.describe()
        ),
    }
}

fn kept(policy: &Policy) -> String {
    let then = if policy.token.is_some() { "unknown" } else { "new" };
    let kept = format!(
        "The answer is kept for {} and given to every further request with the key, with \
         `Idempotent-Replayed: true`; after that the key is {then}.",
        words(policy.retention)
    );
    let again = match policy.profile {
        Profile::Webhook => {
            "An answer that says that it failed is not kept: the next delivery runs again."
                .to_owned()
        }
        Profile::Api => match released(policy).as_slice() {
            [] => return kept,
            statuses => format!(
                "After an answer with the status {} the same key may be sent again and runs again.",
                statuses.join(", ")
            ),
        },
    };
    format!("{kept} {again}")
}

/// The statuses that say that it did not happen.
fn released(policy: &Policy) -> Vec<String> {
    let known = (200..=599).filter_map(|status| StatusCode::from_u16(status).ok());
    known
        .filter(|status| status.canonical_reason().is_some())
        .filter(|status| match policy.ending_of(&Answer::new(*status).without_body()) {
            Ending::Keep => false,
            ending => ending != Ending::UNCERTAIN,
        })
        .map(|status| status.as_u16().to_string())
        .collect()
}

/// What a request hears whose first one is running.
fn duplicate(policy: &Policy) -> String {
    let refused = format!("refused with {}", refused(policy, RefusalKind::InProgress));
    if policy.wait.is_zero() {
        return format!("A request that comes while the first one runs is {refused}.");
    }
    format!(
        "A request that comes while the first one runs waits for its answer for {} at most, and is \
         then {refused}.",
        words(policy.wait)
    )
}

fn unknown(policy: &Policy) -> String {
    if let OnAbandoned::Rerun = policy.on_abandoned {
        return "Where nobody knows whether a request happened, the next one with its key runs \
                again: it may happen twice."
            .to_owned();
    }
    format!(
        "Where nobody knows whether a request happened, its key is refused with {} until that is \
         found out, for {} at most.",
        refused(policy, RefusalKind::OutcomeUnknown),
        words(policy.hold)
    )
}

/// The status that says no, with `Retry-After` where the crate itself says when to come again.
fn refused(policy: &Policy, kind: RefusalKind) -> String {
    let refusal = Refusal::new(kind, "");
    let later = matches!(kind, RefusalKind::InProgress | RefusalKind::OutcomeUnknown);
    let refusal = match policy.profile {
        Profile::Webhook if later => refusal.with_status(StatusCode::SERVICE_UNAVAILABLE),
        _ => refusal,
    };
    match policy.refusal_answer(&refusal) {
        Some(own) => own.status().as_u16().to_string(),
        None if kind == RefusalKind::InProgress => {
            format!("{} and `Retry-After`", refusal.status().as_u16())
        }
        None => refusal.status().as_u16().to_string(),
    }
}

/// A duration in the largest units that leave nothing: `24 hours`, `7 days`, `1 hour 30 minutes`.
fn words(duration: Duration) -> String {
    const UNITS: [(u128, &str); 5] = [
        (24 * 60 * 60 * 1000, "day"),
        (60 * 60 * 1000, "hour"),
        (60 * 1000, "minute"),
        (1000, "second"),
        (1, "millisecond"),
    ];
    let mut left = duration.as_millis();
    let mut words = Vec::new();
    for (length, unit) in UNITS {
        let mut count = left / length;
        // A day is said as 24 hours, which is what it is where clocks are changed.
        if unit == "day" && count == 1 {
            count = 0;
        }
        left -= count * length;
        if count > 0 {
            words.push(format!("{count} {unit}{}", if count == 1 { "" } else { "s" }));
        }
    }
    if words.is_empty() { "no time".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_said_in_words() {
        let of = |seconds| words(Duration::from_secs(seconds));
        assert_eq!(of(86_400), "24 hours");
        assert_eq!(of(7 * 86_400), "7 days");
        assert_eq!(of(86_400 + 5400), "25 hours 30 minutes");
        assert_eq!(of(3601), "1 hour 1 second");
        assert_eq!(words(Duration::from_millis(1500)), "1 second 500 milliseconds");
        assert_eq!(of(0), "no time");
    }
}
