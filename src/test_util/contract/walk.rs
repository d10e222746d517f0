//! Random operations against a model.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::World;
use crate::{
    ClaimToken, Grant, RecordKey, Store, StoreError,
    store::{Claim, Claimed, Kept, Reason, Release, Takeover, Written},
};

const HOLD: Duration = Duration::from_secs(120);

/// How a random walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Where its randomness starts: the same seed takes the same steps.
    pub seed: u64,
    /// How many keys it walks, one after the other.
    pub runs: u32,
    /// How many operations on each.
    pub steps: u32,
}

impl Default for Walk {
    /// 20 keys, 25 operations each, from a seed of the operating system's randomness.
    fn default() -> Self {
        Self { seed: rand::random(), runs: 20, steps: 25 }
    }
}

/// Claims, renews, releases and completes at random, by several owners at once, and compares each
/// answer with what a simple model allows.
///
/// # Panics
///
/// When an answer breaks the model, with the seed and every step of that key.
pub async fn random_walk<S: Store, W: World>(store: &S, world: &W, walk: Walk) {
    let mut dice = Dice(walk.seed);
    for run in 0..walk.runs {
        let mut model = Model::new(store, world, &mut dice);
        for _ in 0..walk.steps {
            if let Err(broken) = model.step(&mut dice).await {
                panic!(
                    "random walk, seed {}, run {run}: {broken}, after:\n{}",
                    walk.seed,
                    model.trace.join("\n")
                );
            }
        }
    }
}

/// SplitMix64: steps that depend on the seed alone.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.roll() % from.len() as u64) as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Claim,
    Release,
    Renew,
    Complete,
    Pass,
}

/// Claims most of all, so that several owners are about.
const OPS: [Op; 11] = [
    Op::Claim,
    Op::Claim,
    Op::Claim,
    Op::Claim,
    Op::Release,
    Op::Release,
    Op::Renew,
    Op::Renew,
    Op::Complete,
    Op::Pass,
    Op::Pass,
];

/// What one key may answer, as far as its owners know.
struct Model<'a, S, W> {
    store: &'a S,
    world: &'a W,
    key: RecordKey,
    grants: Vec<Grant>,
    /// The answer that is stored, once there is one.
    done: Option<Bytes>,
    last_fence: u64,
    /// Who was the last to write its own grant.
    live: Option<ClaimToken>,
    /// Who has given its grant back.
    given_back: HashSet<ClaimToken>,
    trace: Vec<String>,
}

type Checked = Result<(), String>;

fn check(holds: bool, rule: &str) -> Checked {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}

fn unanswered(error: &StoreError) -> String {
    format!("no answer: {error:?}")
}

impl<'a, S: Store, W: World> Model<'a, S, W> {
    fn new(store: &'a S, world: &'a W, dice: &mut Dice) -> Self {
        // The steps come from the seed; the key does not, so that a shared store has none of it.
        let _ = dice.roll();
        Self {
            store,
            world,
            key: RecordKey::from_bytes(rand::random()),
            grants: Vec::new(),
            done: None,
            last_fence: 0,
            live: None,
            given_back: HashSet::new(),
            trace: Vec::new(),
        }
    }

    async fn step(&mut self, dice: &mut Dice) -> Checked {
        let op = dice.pick(&OPS);
        if op == Op::Claim {
            return self.claim(dice).await;
        }
        if self.grants.is_empty() {
            return Ok(());
        }
        let grant = self.grants[(dice.roll() % self.grants.len() as u64) as usize].clone();
        match op {
            Op::Release => self.release(&grant, dice).await,
            Op::Renew => self.renew(&grant).await,
            Op::Complete => self.complete(&grant).await,
            Op::Claim | Op::Pass => {
                self.trace.push("time passes".to_owned());
                self.world.pass(self.world.tick() / 2).await;
                Ok(())
            }
        }
    }

    async fn claim(&mut self, dice: &mut Dice) -> Checked {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&dice.roll().to_be_bytes());
        let mut token = ClaimToken::from_bytes(token);
        if dice.roll().is_multiple_of(5) && !self.grants.is_empty() {
            token = self.grants[(dice.roll() % self.grants.len() as u64) as usize].token;
        }
        let lease = self.world.tick();
        let mut claim = Claim::new(self.key, token, None, lease, HOLD, HOLD);
        claim.takeover = dice.pick(&[Takeover::Refuse, Takeover::Any]);
        let takeover = claim.takeover;
        let answer = self.store.claim(claim).await.map_err(|error| unanswered(&error))?;
        self.trace.push(format!("{} claims, {takeover:?}: {answer:?}", name(token)));
        match answer {
            Claimed::Granted(grant) => self.granted(&grant),
            Claimed::Completed(completed) => check(
                self.done.as_ref() == Some(&completed.payload),
                "an answer came that nobody stored",
            ),
            _ => check(self.done.is_none(), "a stored answer was not given"),
        }
    }

    fn granted(&mut self, grant: &Grant) -> Checked {
        check(self.done.is_none(), "granted although it is completed")?;
        let gone = self.given_back.contains(&grant.token) && self.live == Some(grant.token);
        check(!gone, "granted to a token that was given up")?;
        match self.grants.iter_mut().find(|known| known.token == grant.token) {
            Some(known) if known.fence == grant.fence => {
                check(known == grant, "the same grant came with another story")?;
            }
            known => {
                check(grant.fence.get() > self.last_fence, "a fence did not grow")?;
                self.last_fence = grant.fence.get();
                match known {
                    Some(known) => *known = grant.clone(),
                    None => self.grants.push(grant.clone()),
                }
            }
        }
        self.live = Some(grant.token);
        self.given_back.remove(&grant.token);
        Ok(())
    }

    async fn release(&mut self, grant: &Grant, dice: &mut Dice) -> Checked {
        let reason = dice.pick(&[Reason::DidNotHappen, Reason::Failed, Reason::Unknown]);
        let release = Release::of(grant, reason);
        let answer = self.store.release(release).await.map_err(|error| unanswered(&error))?;
        self.trace.push(format!("{} releases, {reason:?}: {answer:?}", name(grant.token)));
        if answer.is_stored() {
            check(self.done.is_none(), "released although it is completed")?;
            self.live = Some(grant.token);
            self.given_back.insert(grant.token);
        }
        Ok(())
    }

    async fn renew(&mut self, grant: &Grant) -> Checked {
        let answer = self.store.renew(grant).await.map_err(|error| unanswered(&error))?;
        self.trace.push(format!("{} renews: {answer:?}", name(grant.token)));
        let may = self.live == Some(grant.token)
            && self.done.is_none()
            && !self.given_back.contains(&grant.token);
        check(may || !answer.is_stored(), "renewed by one who does not hold it")
    }

    async fn complete(&mut self, grant: &Grant) -> Checked {
        let looked = Instant::now();
        let look = Claim::new(
            self.key,
            ClaimToken::random(),
            None,
            self.world.tick(),
            HOLD,
            Duration::ZERO,
        );
        let before = self.store.claim(look).await.map_err(|error| unanswered(&error))?;
        let body = Bytes::from(format!("by {} with {}", name(grant.token), grant.fence.get()));
        let kept = Kept::new(body.clone(), HOLD);
        let answer = self.store.complete(grant, kept).await.map_err(|error| unanswered(&error))?;
        self.trace.push(format!("{} completes over {before:?}: {answer:?}", name(grant.token)));
        if !matches!(answer, Written::Stored | Written::Restored) {
            return Ok(());
        }
        let by = format!("by {} ", name(grant.token));
        let stored = self.done.as_ref();
        let mine = stored.is_none_or(|done| done.starts_with(by.as_bytes()));
        check(mine, "another answer was there already")?;
        if let Claimed::InProgress(held) = before {
            // A lease may have ended between the look and the completion.
            let lapsed = looked.elapsed() + Duration::from_millis(2) >= held.remaining;
            check(lapsed || self.live == Some(grant.token), "a held grant was written over")?;
        }
        self.done.get_or_insert(body);
        self.live = Some(grant.token);
        Ok(())
    }
}

fn name(token: ClaimToken) -> String {
    token.as_bytes()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}
