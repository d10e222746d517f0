//! The layer: a store and rules, to be put around services.

use std::{fmt, sync::Arc, time::Duration};

use tower_layer::Layer;

use crate::{
    operation::{Drained, Shared},
    record::Secret,
    rule::{Rule, Rules},
    service::Idempotency,
    store::Store,
    telemetry,
    usage::Usage,
};

/// Runs each operation of the services it is put around once, and answers every other delivery from
/// the store.
///
/// It is not generic: a program may choose its store when it starts. Clones share all there is, the
/// runs that [`drain`](Self::drain) waits for among it.
///
/// # Panics
///
/// The services it makes must be called on a Tokio runtime with time enabled; they panic elsewhere.
///
/// # Example: one route of an axum app
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, routing::post};
/// use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, json};
///
/// let layer = IdempotencyLayer::new(
///     MemoryStore::new(),
///     Rule::new("fulfil", Policy::webhook(json("/notifyId"))),
/// );
/// let app: Router = Router::new()
///     .route("/fulfil", post(|| async { "success" }))
///     .route_layer(layer);
/// # let _ = app;
/// # }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    configuration: Arc<Configuration>,
}

/// What a layer and its services share. One pointer leads to it, since a service is cloned for each
/// request, those that pass through among them.
pub(crate) struct Configuration {
    pub(crate) shared: Arc<Shared>,
    pub(crate) rules: Rules,
    pub(crate) usage: Arc<Usage>,
}

impl IdempotencyLayer {
    /// A layer over this store with these rules, or this rule.
    ///
    /// Without any rule it protects nothing, and a warning says so: *no rule*.
    ///
    /// With the feature `metrics`, a recorder must be installed before: what is made without one counts
    /// nothing.
    ///
    /// # Panics
    ///
    /// When a rule that is given alone is for no request ([`Rules::try_add`]).
    #[track_caller]
    pub fn new(store: impl Store, rules: impl Into<Rules>) -> Self {
        let rules = rules.into();
        let shared = Shared::new(Arc::new(store));
        #[cfg(feature = "recent")]
        let shared = shared.recent(rules.recent);
        let shared = Arc::new(shared);
        telemetry::begin(rules.iter());
        if rules.iter().len() == 0 {
            telemetry::no_rule();
        }
        let usage = Arc::new(Usage::new(&rules));
        Self { configuration: Arc::new(Configuration { shared, rules, usage }) }
    }

    /// Makes record keys and fingerprints unguessable for whoever reads the store without knowing
    /// this secret. Default: none, and then he can try identities and bodies until one fits.
    ///
    /// It should be 32 random bytes. All processes that share a store need the same ones.
    ///
    /// Danger: setting, changing or removing it forgets all that is stored, and what comes again runs
    /// again. Clones of the layer that were made before do not have it.
    #[must_use]
    pub fn secret(self, secret: &[u8; 32]) -> Self {
        let mut shared = (*self.configuration.shared).clone();
        shared.secret = Some(Secret::new(secret));
        self.sharing(shared)
    }

    /// Keeps the answers of operations that ended or were replayed lately in this many bytes of the
    /// process's memory, each for a minute at most and no longer than the store has it. A duplicate that
    /// is answered from there asks neither the store nor the inner service. Default: 0, none are kept.
    ///
    /// It pays where duplicates follow soon and come to the same process. An answer that would take more
    /// than 1/32 of the room is not kept, and 256 bytes are counted for each beside its own.
    ///
    /// What is asked is compared with what was, as in the store: the record's name, of which the scope is
    /// a part, and the fingerprint. Where they differ the store is asked. What is unfinished, abandoned or
    /// released is never kept. A delivery that is answered from there does not bind its delivery id to its
    /// business key.
    ///
    /// Danger: a record that an operator deletes from the store is replayed for up to a minute by each
    /// process that has it. Only after that does the operation run again. So is one whose time is over in
    /// the store, where its process had a shorter retention than this one.
    ///
    /// Clones of the layer that were made before have none; those made later share it. Other layers do
    /// not.
    ///
    /// With the feature `serde`, a configuration may say it beside its rules (`RulesConfig`). This setter
    /// counts over that: with 0 none are kept.
    ///
    /// # Example: two megabytes
    ///
    /// ```
    /// use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, json};
    ///
    /// let rule = Rule::new("fulfil", Policy::webhook(json("/notifyId")));
    /// let layer = IdempotencyLayer::new(MemoryStore::new(), rule).recent(2 * 1024 * 1024);
    /// # let _ = layer;
    /// ```
    #[cfg(feature = "recent")]
    #[must_use]
    pub fn recent(self, bytes: usize) -> Self {
        self.sharing((*self.configuration.shared).clone().recent(bytes))
    }

    /// The same layer with other things to share.
    fn sharing(&self, shared: Shared) -> Self {
        let Configuration { rules, usage, .. } = &*self.configuration;
        let (shared, rules, usage) = (Arc::new(shared), rules.clone(), usage.clone());
        Self { configuration: Arc::new(Configuration { shared, rules, usage }) }
    }

    /// The rules that no request has met since the layer was made: a path with a typing error
    /// protects nothing, and nobody is told so. Clones count together.
    ///
    /// A warning tells of them too: once when 10,000 requests have passed for which there is no rule, and
    /// once in [`drain`](Self::drain), if any request came at all.
    ///
    /// # Example: after a test of the whole app
    ///
    /// ```
    /// use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, json};
    ///
    /// let rule = Rule::new("fulfil", Policy::webhook(json("/notifyId"))).path("/fulfill");
    /// let layer = IdempotencyLayer::new(MemoryStore::new(), rule);
    /// // .. the app is tested here, and has a route /fulfil ..
    /// assert_eq!(layer.unused_rules()[0].name(), "fulfil");
    /// ```
    pub fn unused_rules(&self) -> Vec<&Rule> {
        self.configuration.usage.unused(&self.configuration.rules).collect()
    }

    /// Ends gracefully: call it once the server has stopped accepting.
    ///
    /// From the call on, protected requests are refused with 503. It ends when every handler has
    /// ended and its answer is stored, those whose client has gone among them, or when `within` is
    /// over. There is no way back.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; the layer refuses requests all the same.
    ///
    /// # Example: nothing was left
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use std::time::Duration;
    /// use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, json};
    ///
    /// let rule = Rule::new("fulfil", Policy::webhook(json("/notifyId")));
    /// let layer = IdempotencyLayer::new(MemoryStore::new(), rule);
    /// let drained = layer.drain(Duration::from_secs(10)).await;
    /// assert!(drained.is_clean());
    /// # }
    /// ```
    pub async fn drain(&self, within: Duration) -> Drained {
        self.configuration.usage.drain(&self.configuration.rules);
        self.configuration.shared.keeper.drain(within).await
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency::new(inner, self.configuration.clone())
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("rules", &self.configuration.rules)
            .finish_non_exhaustive()
    }
}
