//! What a committed row means, whatever the handler says after it, and how long it must be there.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use tower_idempotency::{
    Answer, Ledger, LedgerEntry, LedgerError, LedgerRow, MemoryStore, Outcome, Policy, RefusalKind,
    Rule, Sealed, State,
};

use crate::{
    house::{Asked, House, SECOND, api, operation, request, text},
    table::Table,
};

/// How a handler ends after it has committed its row.
#[derive(Clone, Copy, Debug)]
enum Says {
    Status(u16),
    Outcome(Outcome),
    Marks,
}

/// A handler that charges once and then says something else, and the layer's policy.
fn contradicting(policy: Policy, table: Table, says: Says) -> House {
    House::with(policy, move |asked: Asked| {
        let operation = operation(&asked);
        if table.enter(&operation).is_none() {
            table.commit(&operation, &Answer::text("charged"));
        }
        if matches!(says, Says::Marks) {
            operation.mark_uncertain();
        }
        async move {
            let mut answer =
                text(if let Says::Status(status) = says { status } else { 200 }, "no")?;
            if let Says::Outcome(outcome) = says {
                answer.extensions_mut().insert(outcome);
            }
            Ok(answer)
        }
    })
}

const SAYS: [Says; 5] = [
    Says::Status(503),
    Says::Status(504),
    Says::Outcome(Outcome::Release),
    Says::Outcome(Outcome::Uncertain),
    Says::Marks,
];

#[tokio::test(start_paused = true)]
async fn what_has_its_row_is_never_released_or_unknown_whatever_is_said_after_it() {
    for says in SAYS {
        let table = Table::default();
        let house = contradicting(api().ledger(table.clone()), table.clone(), says);
        let first = house.send("k").await;
        assert_eq!((first.status, first.is_replayed().text()), (200, "charged"), "{says:?}");
        // Released, the key would be free for another body, which would get this one's answer.
        let other = house.call(request("k", "another body")).await;
        assert_eq!(other.is_refused(RefusalKind::Mismatch).status, 422, "{says:?}");
        assert_eq!(house.send("k").await.is_replayed().text(), "charged");
        assert_eq!((house.runs(), table.finds(), table.seals()), (1, 0, 0), "{says:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_the_policy_knows_nothing_of_changes_nothing() {
    for says in SAYS {
        let house = contradicting(api(), Table::default(), says);
        house.send("k").await.is_executed();
        let record = house.record().await;
        let kept = record.state == State::Completed;
        assert!(!kept, "{says:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_does_not_count_where_it_is_only_observed() {
    let table = Table::default();
    let policy = api().ledger(table.clone()).observe();
    let house = contradicting(policy, table.clone(), Says::Status(503));
    assert_eq!(house.send("k").await.is_executed().status, 503, "what the handler says");
    assert_eq!(house.record().await.state, State::Released);
    // Enforced, it does.
    let house = contradicting(api().ledger(table.clone()), table, Says::Status(503));
    assert_eq!(house.send("k").await.is_replayed().text(), "charged");
}

#[tokio::test(start_paused = true)]
async fn a_row_whose_status_is_released_is_stored_again_when_the_store_lost_everything() {
    let table = Table::default();
    for _ in 0..2 {
        let inside = table.clone();
        let rule = Rule::new("pay", api().ledger(table.clone()));
        let house = House::of(MemoryStore::new(), rule, move |asked: Asked| {
            let operation = operation(&asked);
            let answer = inside.enter(&operation).unwrap_or_else(|| {
                let answer = Answer::text("closed").with_status(StatusCode::SERVICE_UNAVAILABLE);
                inside.commit(&operation, &answer);
                answer
            });
            async move { text(answer.status().as_u16(), "closed") }
        });
        assert_eq!(house.send("k").await.is_executed().status, 503);
        assert_eq!(house.send("k").await.is_replayed().status, 503);
        assert_eq!(house.runs(), 1);
    }
    assert_eq!(table.rows(), 1);
}

/// A table whose rows are deleted after this time.
struct Purged(Option<Duration>);

impl Ledger for Purged {
    async fn find(&self, _: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
        Ok(None)
    }

    async fn seal(&self, _: &LedgerEntry, _: &LedgerRow) -> Result<Sealed, LedgerError> {
        Ok(Sealed::Written)
    }

    fn hold(&self) -> Option<Duration> {
        self.0
    }
}

#[test]
fn a_policy_that_holds_longer_than_its_ledger_is_refused_where_it_is_built() {
    let hold = 3 * SECOND + 604_800 * SECOND;
    let policy = |kept| api().hold(hold).ledger(Arc::new(Purged(kept)));
    let error = policy(Some(hold - SECOND)).check().unwrap_err().to_string();
    assert!(error.contains("DedupTable::hold"), "{error}");
    for kept in [None, Some(hold), Some(hold + SECOND)] {
        assert_eq!(policy(kept).check(), Ok(()), "{kept:?}");
    }
    // The order in which a policy is written does not matter.
    let late = api().ledger(Box::new(Purged(Some(hold - SECOND)))).hold(hold);
    assert!(late.check().is_err());
}
