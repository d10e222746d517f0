//! An operation that was started and gave no sign of life.

use std::sync::{Arc, Mutex};

use tokio::time::{Instant, sleep};
use tower_idempotency::{
    Abandoned, Answer, Policy, Previous, RefusalKind, Resolution, State,
    store::StoreErrorKind,
    test_util::{Fault, Gate, Transition},
};

use crate::house::{Answered, Asked, Door, House, SECOND, api, leave, operation, settle, text};

/// The first run ends unknown; later ones answer `done` and say what they found.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<Previous>>>);

impl Runs {
    async fn run(self, request: Asked) -> Answered {
        let previous = operation(&request).previous();
        let first = {
            let mut runs = self.0.lock().unwrap();
            runs.push(previous);
            runs.len() == 1
        };
        if first { text(504, "timed out") } else { text(200, "done") }
    }

    fn found(&self) -> Vec<Previous> {
        self.0.lock().unwrap().clone()
    }
}

/// A house with an abandoned operation under `k`.
async fn abandoned(policy: Policy) -> (House, Runs) {
    let runs = Runs::default();
    let inside = runs.clone();
    let house = House::with(policy, move |request| inside.clone().run(request));
    house.send("k").await.is_executed();
    (house, runs)
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_operation_is_refused_unless_the_policy_says_otherwise() {
    let (house, runs) = abandoned(api()).await;
    let refused = house.send("k").await;
    refused.is_refused(RefusalKind::OutcomeUnknown);
    assert_eq!((refused.status, refused.header("retry-after")), (409, None));
    assert_eq!(runs.found().len(), 1);

    let (house, runs) = abandoned(api().rerun_abandoned()).await;
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    assert_eq!(runs.found(), [Previous::Nothing, Previous::AbandonedUnknown]);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_says_done_gives_the_answer_that_everybody_gets() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let (house, runs) = abandoned(api().resolve_abandoned(move |what: Abandoned| {
        noted.lock().unwrap().push(what);
        let date = "Mon, 30 Nov 2026 00:00:00 GMT".parse().unwrap();
        async { Resolution::Done(Answer::text("paid").with_header(http::header::DATE, date)) }
    }))
    .await;
    for _ in 0..2 {
        let reply = house.send("k").await;
        assert_eq!(reply.is_replayed().text(), "paid");
        assert_eq!(reply.header("date"), None, "what is never stored is not stored");
    }
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!((&*asked[0].rule, &*asked[0].key, asked[0].attempt), ("pay", "k", 1));
    assert_eq!(runs.found().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_says_not_done_lets_it_run_and_says_so_to_the_handler() {
    let (house, runs) = abandoned(api().resolve_abandoned(|_| async { Resolution::NotDone })).await;
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    assert_eq!(runs.found(), [Previous::Nothing, Previous::AbandonedNotDone]);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_does_not_know_or_takes_longer_than_five_seconds_settles_nothing() {
    let (house, _) = abandoned(api().resolve_abandoned(|_| async { Resolution::Unknown })).await;
    house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);

    let (house, runs) = abandoned(api().resolve_abandoned(|_| async {
        sleep(5 * SECOND + SECOND / 100).await;
        Resolution::NotDone
    }))
    .await;
    let begun = Instant::now();
    house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    assert_eq!(begun.elapsed(), 5 * SECOND);
    assert_eq!(runs.found().len(), 1);

    let (house, _) = abandoned(api().resolve_abandoned(|_| async {
        sleep(5 * SECOND - SECOND / 100).await;
        Resolution::NotDone
    }))
    .await;
    house.send("k").await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_panics_settles_nothing() {
    let (house, runs) = abandoned(api().resolve_abandoned(|what: Abandoned| async move {
        assert_eq!(what.attempt, 0, "a bug in the resolver");
        Resolution::NotDone
    }))
    .await;
    assert!(house.client("k").await.unwrap_err().is_panic());
    let record = house.record().await;
    assert!(record.is_abandoned(), "{record:?}");
    house.drained().await;
    assert_eq!(runs.found().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_during_the_resolver_settles_nothing() {
    let door = Door::new();
    let inside = door.clone();
    let (house, runs) = abandoned(api().resolve_abandoned(move |_| {
        let door = inside.clone();
        async move {
            door.pass().await;
            Resolution::NotDone
        }
    }))
    .await;
    let client = house.client("k");
    door.came().await;
    leave(client).await;
    assert!(house.record().await.is_abandoned());
    assert_eq!(runs.found().len(), 1);
    let client = house.client("k");
    door.came().await;
    door.let_one_in();
    client.await.unwrap().is_executed();
}

#[tokio::test(start_paused = true)]
async fn of_two_recoveries_at_once_only_one_is_granted() {
    let door = Door::new();
    let inside = door.clone();
    let (house, runs) = abandoned(api().resolve_abandoned(move |_| {
        let door = inside.clone();
        async move {
            door.pass().await;
            Resolution::NotDone
        }
    }))
    .await;
    let (one, two) = (house.client("k"), house.client("k"));
    door.came().await;
    door.came().await;
    door.let_one_in();
    door.let_one_in();
    let replies = [one.await.unwrap(), two.await.unwrap()];
    let executed = replies.iter().filter(|reply| reply.header("idempotent-replayed").is_none());
    assert_eq!(executed.count(), 1, "{replies:?}");
    assert_eq!(runs.found().len(), 2, "the abandoned run, and one more");
}

#[tokio::test(start_paused = true)]
async fn f8_a_sign_of_life_of_the_owner_voids_a_verdict() {
    let (resolving, running) = (Door::new(), Door::new());
    let inside = resolving.clone();
    let policy = api().lease(3 * SECOND).resolve_abandoned(move |_| {
        let door = inside.clone();
        async move {
            door.pass().await;
            Resolution::NotDone
        }
    });
    let inside = running.clone();
    let house = House::with(policy, move |_| {
        let door = inside.clone();
        async move {
            door.pass().await;
            text(200, "the owner's")
        }
    });
    let owner = house.client("k");
    running.came().await;
    // Its renewals do not come through for a lease.
    house.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    sleep(4 * SECOND).await;
    let recovery = house.client("k");
    resolving.came().await;
    house.faults.heal();
    house.faults.called(Transition::Renew, house.faults.calls(Transition::Renew) + 1).await;
    settle().await;
    resolving.let_one_in();
    recovery.await.unwrap().is_refused(RefusalKind::InProgress);
    assert_eq!(house.runs(), 1);
    running.let_one_in();
    owner.await.unwrap().is_executed();
    assert_eq!(house.send("k").await.is_replayed().text(), "the owner's");
}

#[tokio::test(start_paused = true)]
async fn a_verdict_that_cannot_be_stored_is_refused_with_503_and_stays_to_be_asked_again() {
    let (house, _) =
        abandoned(api().resolve_abandoned(|_| async { Resolution::Done(Answer::text("paid")) }))
            .await;
    for fault in [Fault::Fail(StoreErrorKind::Refused), Fault::Hold(Gate::new())] {
        house.faults.next(Transition::Resolve, fault);
        house.send("k").await.is_refused(RefusalKind::StoreUnavailable);
    }
    assert_eq!(house.record().await.state, State::InProgress);
    // Its answer lost, it stands.
    house.faults.next(Transition::Resolve, Fault::LoseAnswer(StoreErrorKind::Timeout));
    house.send("k").await.is_refused(RefusalKind::StoreUnavailable);
    assert_eq!(house.send("k").await.is_replayed().text(), "paid");
}
