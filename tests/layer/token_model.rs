//! Random issues, uses, ends and losses of answers on one business key, against what must hold whatever
//! comes of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use proptest::prelude::*;
use tokio::time::sleep;
use tower_idempotency::{
    FieldValue, Handled, Issuance, OneTimeToken, RefusalKind, Scope,
    store::StoreErrorKind,
    test_util::{Fault, Transition},
};

use crate::{
    house::{Asked, House, SECOND, text},
    token_house::{for_an_order, issuer, of_order, paying},
};

const CALLERS: [&str; 2] = ["ann", "bob"];

#[derive(Clone, Debug)]
enum Step {
    /// Asks for a token, bound to an amount or to none.
    Issue {
        caller: usize,
        amount: Option<u32>,
    },
    /// Brings one of the tokens that were given out, or a made-up one, and the handler answers this.
    Use {
        token: usize,
        caller: usize,
        amount: u32,
        answers: u16,
    },
    /// The next answer of the store to this is lost.
    Lose(Transition),
    Pass(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let amount = prop_oneof![Just(None), (1_u32..3).prop_map(Some)];
    let transition = prop_oneof![
        Just(Transition::Claim),
        Just(Transition::Issue),
        Just(Transition::Complete),
        Just(Transition::Release)
    ];
    let answers = prop_oneof![4 => Just(503_u16), 2 => Just(200), 1 => Just(504)];
    let step = prop_oneof![
        4 => (0_usize..2, amount).prop_map(|(caller, amount)| Step::Issue { caller, amount }),
        8 => (0_usize..4, 0_usize..2, 1_u32..3, answers).prop_map(|(token, caller, amount, answers)| {
            Step::Use { token, caller, amount, answers }
        }),
        1 => transition.prop_map(Step::Lose),
        1 => (1_u32..400).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..40)
}

/// What is known of a token that was given out.
#[derive(Clone, Copy, Debug)]
struct Given {
    caller: usize,
    amount: Option<u32>,
    /// In which place, among all tokens.
    number: usize,
}

#[derive(Default)]
struct Known {
    given: HashMap<OneTimeToken, Given>,
    order: Vec<OneTimeToken>,
    /// The token and the amount whose answer was kept.
    kept: Option<(OneTimeToken, u32)>,
    /// Whether an end left it unknown.
    unknown: bool,
    runs: usize,
}

impl Known {
    fn issued(&mut self, issued: &Issuance, caller: usize, amount: Option<u32>) {
        match issued {
            Issuance::Token { token, .. } => {
                assert!(self.kept.is_none() && !self.unknown, "given out for what is not open");
                let number = self.order.len();
                let given = self.given.entry(*token).or_insert_with(|| {
                    self.order.push(*token);
                    Given { caller, amount, number }
                });
                assert_eq!((given.caller, given.amount), (caller, amount), "shown to another");
                assert_eq!(given.number, self.order.len() - 1, "an old one was given out again");
            }
            Issuance::BoundOtherwise { .. } => {
                let last = self.order.last().expect("one is outstanding");
                let given = self.given[last];
                assert_ne!((given.caller, given.amount), (caller, amount), "kept from its owner");
            }
            Issuance::Done => assert!(self.kept.is_some()),
            Issuance::OutcomeUnknown => assert!(self.unknown),
            other => panic!("{other:?}"),
        }
    }

    /// A run was started by this use.
    fn ran(&mut self, token: OneTimeToken, caller: usize, amount: u32, answers: u16) {
        assert!(self.kept.is_none(), "run again");
        assert!(!self.unknown, "run although nobody knows");
        let given = self.given.get(&token).expect("let in without a token");
        assert_eq!(given.caller, caller, "somebody else was let in");
        assert!(given.amount.is_none_or(|bound| bound == amount), "another amount was let in");
        assert_eq!(given.number, self.order.len() - 1, "a token that was replaced was let in");
        self.runs += 1;
        match answers {
            200 => self.kept = Some((token, amount)),
            504 => self.unknown = true,
            _ => {}
        }
    }
}

async fn walk(steps: Vec<Step>) {
    let answers = Arc::new(Mutex::new(200));
    let inside = answers.clone();
    let policy = for_an_order().token_bound_to(Scope::header("X-User"));
    let house = House::with(policy, move |_: Asked| {
        std::future::ready(text(*inside.lock().unwrap(), "done"))
    });
    let tokens = issuer(&house);
    let mut known = Known::default();
    for step in steps {
        match step {
            Step::Issue { caller, amount } => {
                let mut request = of_order("O-1").bound_to(CALLERS[caller]);
                if let Some(amount) = amount {
                    let amount = FieldValue::json(&amount.to_string()).unwrap();
                    request = request.must_match([Some(amount)]);
                }
                let issued = tokens.issue(request).await.expect("one lost answer is made up for");
                known.issued(&issued, caller, amount);
            }
            Step::Use { token, caller, amount, answers: says } => {
                // The last ones count most.
                let token = known.order.iter().rev().nth(token).copied();
                let token = token.unwrap_or_else(OneTimeToken::random);
                *answers.lock().unwrap() = says;
                let mut request = paying(&token, "O-1", amount);
                request.headers_mut().insert("X-User", CALLERS[caller].parse().unwrap());
                let before = known.runs;
                let reply = house.call(request).await;
                if let Some(Handled::Executed { .. }) = reply.handled {
                    known.ran(token, caller, amount, says);
                    assert_eq!(reply.status, says);
                }
                assert_eq!(house.runs(), known.runs, "a run that nobody was told of");
                if let Some(Handled::Replayed) = reply.handled {
                    assert_eq!(known.kept, Some((token, amount)));
                    assert_eq!(known.given[&token].caller, caller);
                }
                let owner = known.given.get(&token).is_some_and(|given| given.caller == caller);
                match reply.refused {
                    Some(RefusalKind::TokenUnknown) => {}
                    Some(_) => assert!(owner, "told something of another's: {reply:?}"),
                    None => assert!(owner && (known.runs > before || known.kept.is_some())),
                }
            }
            Step::Lose(transition) => {
                house.faults.next(transition, Fault::LoseAnswer(StoreErrorKind::Timeout));
            }
            Step::Pass(seconds) => sleep(seconds * SECOND).await,
        }
        // What the keeper has left to do is done.
        sleep(SECOND).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_one_token_runs_and_nobody_else_is_let_in(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(walk(steps));
    }
}
