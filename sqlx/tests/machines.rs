//! What the check of a state machine finds.

use std::panic::{RefUnwindSafe, catch_unwind};

use tower_idempotency_sqlx::{States, states};

states! {
    enum Sound {
        Pending = "PENDING" => Processing,
        Processing = "PROCESSING" => Done | Failed | Pending,
        Done = "DONE",
        Failed = "FAILED",
    }
}

states! {
    /// The order whose charge failed, and that nobody ever looked at again.
    enum Forgotten {
        Pending = "PENDING" => Processing,
        Processing = "PROCESSING" => Done | Failed,
        Failed = "FAILED",
        Done = "DONE",
    }
}

states! {
    enum Circle {
        A = "a" => B | End,
        B = "b" => C,
        C = "c" => B,
        End = "end",
        Island = "island" => End,
    }
}

fn complaint<S: States + RefUnwindSafe>(check: fn(&[S]), finals: &[S]) -> String {
    let panic = catch_unwind(|| check(finals)).expect_err("something is wrong with it");
    *panic.downcast::<String>().expect("it says what")
}

#[test]
fn a_sound_machine_passes() {
    Sound::check(&[Sound::Done, Sound::Failed]);
}

#[test]
fn a_forgotten_branch_is_found() {
    let complaint = complaint(Forgotten::check, &[Forgotten::Done]);
    assert_eq!(complaint, "Failed has no way out and is not final");
}

#[test]
fn a_final_state_with_a_way_out_is_found() {
    let complaint = complaint(Sound::check, &[Sound::Done, Sound::Failed, Sound::Processing]);
    assert_eq!(complaint, "Processing is said to be final, but has a way out");
}

#[test]
fn circles_and_islands_are_found() {
    let complaint = complaint(Circle::check, &[Circle::End]);
    assert_eq!(
        complaint,
        "B never comes to a final state; C never comes to a final state; \
         Island is never reached from A"
    );
}

#[test]
#[should_panic(expected = "not a legal move of this state machine")]
fn an_illegal_move_that_is_no_constant_panics() {
    let _ = Sound::Done.to(Sound::Pending);
}

#[test]
fn a_move_knows_where_it_begins_and_ends() {
    let step = Sound::Processing.to(Sound::Failed);
    assert_eq!((step.from(), step.to()), (Sound::Processing, Sound::Failed));
    assert_eq!((step.to().name(), Sound::ALL.len()), ("FAILED", 4));
}
