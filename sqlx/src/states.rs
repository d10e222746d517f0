//! State machines whose illegal moves do not compile.

use std::fmt::Debug;

/// A state machine that [`states!`](crate::states!) has written.
pub trait States: Copy + Eq + Debug + Send + Sync + 'static {
    /// All states, as they were written; the first is the one that everything begins in.
    const ALL: &'static [Self];

    /// The name of this state in the column.
    fn name(self) -> &'static str;

    /// The states that may follow this one.
    fn next(self) -> &'static [Self];
}

/// A legal move of a state machine, from one state to one that may follow it.
///
/// Made by `Order::Pending.to(Order::Processing)`. As a constant, an illegal one does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<S> {
    from: S,
    to: S,
}

impl<S: Copy> Move<S> {
    /// For [`states!`](crate::states!), which has looked whether it is one.
    #[doc(hidden)]
    pub const fn legal(from: S, to: S) -> Self {
        Self { from, to }
    }

    /// The state it begins in.
    pub const fn from(self) -> S {
        self.from
    }

    /// The state it ends in.
    pub const fn to(self) -> S {
        self.to
    }
}

/// Writes an enum of states: for each its name in the column and the states that may follow it. The
/// first one is the one that everything begins in; one that nothing follows is final.
///
/// The enum gets `name()`, `to(next)`, which makes a [`Move`], `check(finals)` for a test, and
/// `diagram()`, a drawing. It implements [`States`].
///
/// # Example: an order that is charged
///
/// ```
/// use tower_idempotency_sqlx::{Move, states};
///
/// states! {
///     /// What has become of an order.
///     pub enum Order {
///         Pending = "PENDING" => Processing,
///         Processing = "PROCESSING" => Done | Failed,
///         Done = "DONE",
///         Failed = "FAILED",
///     }
/// }
///
/// const START: Move<Order> = Order::Pending.to(Order::Processing);
/// assert_eq!(START.to().name(), "PROCESSING");
///
/// // The test that finds a forgotten branch:
/// Order::check(&[Order::Done, Order::Failed]);
///
/// assert_eq!(Order::diagram(), "\
/// stateDiagram-v2
///     state \"PENDING\" as Pending
///     state \"PROCESSING\" as Processing
///     state \"DONE\" as Done
///     state \"FAILED\" as Failed
///     [*] --> Pending
///     Pending --> Processing
///     Processing --> Done
///     Processing --> Failed
///     Done --> [*]
///     Failed --> [*]
/// ");
/// ```
///
/// # Example: an illegal move does not compile
///
/// ```compile_fail,E0080
/// # use tower_idempotency_sqlx::{Move, states};
/// # states! {
/// #     pub enum Order {
/// #         Pending = "PENDING" => Processing,
/// #         Processing = "PROCESSING" => Done,
/// #         Done = "DONE",
/// #     }
/// # }
/// const SKIP: Move<Order> = Order::Pending.to(Order::Done);
/// # let _ = SKIP;
/// ```
///
/// Nor does a state that is none:
///
/// ```compile_fail,E0599
/// # use tower_idempotency_sqlx::states;
/// states! {
///     pub enum Order {
///         Pending = "PENDING" => Done,
///     }
/// }
/// ```
///
/// A name that two states share does not either, nor do names that some databases take for one, which
/// differ in the case of their letters or in spaces at their ends:
///
/// ```compile_fail,E0080
/// # use tower_idempotency_sqlx::states;
/// states! {
///     pub enum Order {
///         Pending = "PENDING" => Done,
///         Done = "PENDING",
///     }
/// }
/// ```
///
/// ```compile_fail,E0080
/// # use tower_idempotency_sqlx::states;
/// states! {
///     pub enum Order {
///         Pending = "PENDING" => Done,
///         Done = "Pending ",
///     }
/// }
/// ```
#[macro_export]
macro_rules! states {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Name:ident {
            $(
                $(#[$state_meta:meta])*
                $State:ident = $text:literal $(=> $($Next:ident)|+)?
            ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $Name {
            $($(#[$state_meta])* #[doc = concat!("`", $text, "`")] $State),+
        }

        const _: () = $crate::names_differ(&[$($text),+]);

        #[allow(dead_code)]
        impl $Name {
            /// The name of this state in the column.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$State => $text),+
                }
            }

            /// The move to this state.
            ///
            /// # Panics
            ///
            /// When it may not follow this one: at compile time, where the move is a constant.
            #[track_caller]
            $vis const fn to(self, next: Self) -> $crate::Move<Self> {
                let legal: &[Self] = match self {
                    $(Self::$State => &[$($(Self::$Next),+)?]),+
                };
                let mut at = 0;
                while at < legal.len() {
                    if legal[at] as usize == next as usize {
                        return $crate::Move::legal(self, next);
                    }
                    at += 1;
                }
                panic!("not a legal move of this state machine")
            }

            /// For a unit test: every state is reached from the first one, those that nothing
            /// follows are exactly these, and every state has a way to one of them.
            ///
            /// # Panics
            ///
            /// When it is not so, with all that is wrong.
            #[track_caller]
            $vis fn check(finals: &[Self]) {
                $crate::check_states(finals);
            }

            /// The state machine as a Mermaid diagram.
            $vis fn diagram() -> ::std::string::String {
                $crate::draw_states::<Self>()
            }
        }

        impl $crate::States for $Name {
            const ALL: &'static [Self] = &[$(Self::$State),+];

            fn name(self) -> &'static str {
                Self::name(self)
            }

            fn next(self) -> &'static [Self] {
                match self {
                    $(Self::$State => &[$($(Self::$Next),+)?]),+
                }
            }
        }
    };
}

/// Panics, at compile time, where two states have one name, or names that are equal under MySQL's
/// collations: a guarded update would take one for the other.
#[doc(hidden)]
pub const fn names_differ(names: &[&str]) {
    let mut one = 0;
    while one < names.len() {
        let mut other = one + 1;
        while other < names.len() {
            assert!(
                !same(names[one].as_bytes(), names[other].as_bytes()),
                "two states have the same name, but for the case of its letters or spaces at its end"
            );
            other += 1;
        }
        one += 1;
    }
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let (mut at, longer) = (0, if a.len() > b.len() { a.len() } else { b.len() });
    while at < longer {
        // Padded, as a comparison of texts is.
        let one = if at < a.len() { a[at] } else { b' ' };
        let other = if at < b.len() { b[at] } else { b' ' };
        if !one.eq_ignore_ascii_case(&other) {
            return false;
        }
        at += 1;
    }
    true
}

/// Panics with all that is wrong with a state machine.
#[doc(hidden)]
#[track_caller]
pub fn check_states<S: States>(finals: &[S]) {
    let mut wrong = Vec::new();
    for state in S::ALL.iter().copied() {
        let after = followers(state);
        if state != S::ALL[0] && !followers(S::ALL[0]).contains(&state) {
            wrong.push(format!("{state:?} is never reached from {:?}", S::ALL[0]));
        }
        match (finals.contains(&state), state.next().is_empty()) {
            (true, true) => {}
            (true, false) => {
                wrong.push(format!("{state:?} is said to be final, but has a way out"));
            }
            (false, true) => wrong.push(format!("{state:?} has no way out and is not final")),
            (false, false) if finals.iter().any(|last| after.contains(last)) => {}
            (false, false) => wrong.push(format!("{state:?} never comes to a final state")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

/// All states that can come after this one.
fn followers<S: States>(state: S) -> Vec<S> {
    let mut found = state.next().to_vec();
    let mut at = 0;
    while let Some(state) = found.get(at).copied() {
        for next in state.next() {
            if !found.contains(next) {
                found.push(*next);
            }
        }
        at += 1;
    }
    found
}

/// A Mermaid diagram of a state machine.
#[doc(hidden)]
pub fn draw_states<S: States>() -> String {
    let mut lines = vec!["stateDiagram-v2".to_owned()];
    for state in S::ALL {
        lines.push(format!("    state {:?} as {state:?}", state.name()));
    }
    lines.push(format!("    [*] --> {:?}", S::ALL[0]));
    for state in S::ALL {
        lines.extend(state.next().iter().map(|next| format!("    {state:?} --> {next:?}")));
    }
    let ends = S::ALL.iter().filter(|state| state.next().is_empty());
    lines.extend(ends.map(|state| format!("    {state:?} --> [*]")));
    lines.join("\n") + "\n"
}
