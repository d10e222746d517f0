//! A page for each way of saying no: what it means, and what client and operator can do.
//!
//! The `type` of every [`Refusal`](crate::Refusal) is the address of its page here, so that whoever
//! reads a problem in a log can follow it. [`Refusal::type_uri`](crate::Refusal::type_uri) gives the
//! address, [`RefusalKind::name`](crate::RefusalKind::name) the name of the page.
//!
//! Each page has the status that a client of an API hears ([`Policy::api`](crate::Policy::api)), the
//! one that a notification's sender hears ([`Policy::webhook`](crate::Policy::webhook)), and the code
//! that a gRPC client hears, with whatever its policy. [`Policy::refuse_with`](crate::Policy::refuse_with)
//! can say it otherwise.

/// Makes the module of each page; every kind of refusal must have one to compile under test.
macro_rules! pages {
    ($($kind:ident $module:ident $page:literal)*) => {
        $(
            #[doc = include_str!(concat!("../docs/problems/", $page, ".md"))]
            pub mod $module {}
        )*

        #[cfg(test)]
        const PAGES: &[(crate::RefusalKind, &str, &str, &str)] = &[$((
            crate::RefusalKind::$kind,
            stringify!($module),
            $page,
            include_str!(concat!("../docs/problems/", $page, ".md")),
        )),*];

        #[cfg(test)]
        const fn has_a_page(kind: crate::RefusalKind) -> bool {
            match kind {
                $(crate::RefusalKind::$kind => true),*
            }
        }
    };
}

pages! {
    IdentityMissing identity_missing "identity-missing"
    IdentityMalformed identity_malformed "identity-malformed"
    BodyCutShort body_cut_short "body-cut-short"
    BodyTooLarge body_too_large "body-too-large"
    BodyTooSlow body_too_slow "body-too-slow"
    Mismatch mismatch "mismatch"
    InProgress in_progress "in-progress"
    OutcomeUnknown outcome_unknown "outcome-unknown"
    AnswerNotKept answer_not_kept "answer-not-kept"
    TokenMissing token_missing "token-missing"
    TokenUnknown token_unknown "token-unknown"
    StoreUnavailable store_unavailable "store-unavailable"
    RecordUnreadable record_unreadable "record-unreadable"
    ShuttingDown shutting_down "shutting-down"
    ScopeMissing scope_missing "scope-missing"
    NotVerified not_verified "not-verified"
    BusinessKeyMissing business_key_missing "business-key-missing"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Refusal;

    #[test]
    fn the_type_of_each_problem_is_the_address_of_its_page() {
        for (kind, module, page, _) in PAGES {
            assert!(has_a_page(*kind));
            assert_eq!(kind.name(), *page);
            let refusal = Refusal::new(*kind, "");
            let address = format!("/tower_idempotency/problems/{module}/index.html");
            assert!(refusal.type_uri().ends_with(&address), "{}", refusal.type_uri());
        }
    }

    #[test]
    fn each_page_begins_with_its_title_and_its_name() {
        for (kind, _, page, text) in PAGES {
            let problem = Refusal::new(*kind, "").to_problem();
            let problem: serde_json::Value =
                serde_json::from_slice(problem.body().unwrap()).unwrap();
            let title = problem["title"].as_str().unwrap();
            assert!(text.starts_with(&format!("# {title}\n\n`{page}`: ")), "{page}");
        }
    }

    #[test]
    fn each_page_has_what_client_and_operator_can_do() {
        for (_, _, page, text) in PAGES {
            for part in [
                "| API | ",
                "| webhook | ",
                "| gRPC | ",
                "## What the client should do\n\n",
                "## What the operator can do\n\n",
            ] {
                assert_eq!(text.matches(part).count(), 1, "{part} of {page}");
            }
        }
    }

    #[test]
    fn no_page_is_of_a_problem_that_does_not_exist() {
        let pages =
            std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/problems")).unwrap();
        let mut found: Vec<String> =
            pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
        let mut known: Vec<_> = PAGES.iter().map(|(_, _, page, _)| format!("{page}.md")).collect();
        found.sort();
        known.sort();
        assert_eq!(found, known);
    }
}
