//! Clients that send, leave, come again and mix things up, and what they may be told.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_idempotency::{
    Handled, IdempotencyLayer, Operation, Refusal, RefusalKind, RequestBody, ResponseBody, Rule,
    Store,
    store::{Cursor, Listed},
};

use crate::{
    chance::Chance,
    journal::{Journal, Name},
    plan::{Plan, Recovery},
    shop::{AnswerBody, BodyError, Shop},
};

type Service =
    BoxCloneSyncService<Request<Full<Bytes>>, http::Response<ResponseBody<AnswerBody>>, BodyError>;

/// Some layers over one store, as processes have them, and the shop in them.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) chance: Chance,
    pub(crate) journal: Arc<Journal>,
    pub(crate) layers: Vec<IdempotencyLayer>,
    services: Vec<Service>,
}

/// What is sent.
#[derive(Clone, Debug)]
struct Sent {
    tenant: String,
    delivery: String,
    order: Option<String>,
    amount: u64,
    /// The handler ends well, and at once.
    plainly: bool,
}

/// What came of it.
#[derive(Debug)]
enum Told {
    Executed,
    Replayed,
    Refused(RefusalKind),
    /// The handler failed or panicked, or its answer broke off.
    Broken,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan, stores: Vec<impl Store + Clone>) -> Self {
        let chance = Chance::new(seed.wrapping_add(1));
        let journal = Arc::new(Journal::new(plan));
        let shop = Shop { plan, chance: chance.clone(), journal: journal.clone() };
        let layers: Vec<_> = stores
            .into_iter()
            .map(|store| IdempotencyLayer::new(store, Rule::new("shop", plan.policy(&journal))))
            .collect();
        let services = layers.iter().map(|layer| around(layer, &shop)).collect();
        Self { seed, plan, chance, journal, layers, services }
    }

    fn random(&self) -> Sent {
        let chance = &self.chance;
        let order = chance.below(4);
        let mut delivery = format!("D-{order}-{}", chance.below(3));
        let mut amount = order;
        let mut named = Some(format!("O-{order}"));
        match chance.below(20) {
            // A delivery id of another order, another amount, no order.
            0 => delivery = format!("D-{}-{}", chance.below(4), chance.below(3)),
            1 => amount = 99,
            other if other < 2 + self.plan.nameless => named = None,
            _ => {}
        }
        let tenant = format!("tenant-{}", chance.below(2));
        Sent { tenant, delivery, order: named, amount, plainly: false }
    }

    fn request(sent: &Sent) -> Request<Full<Bytes>> {
        let order = sent.order.as_ref().map(|order| format!(r#","order":"{order}""#));
        let body = format!(
            r#"{{"id":"{}","amount":{}{}}}"#,
            sent.delivery,
            sent.amount,
            order.unwrap_or_default()
        );
        Request::post("/notify")
            .header("idempotency-key", &sent.delivery)
            .header("x-tenant", &sent.tenant)
            .header("x-plainly", if sent.plainly { "yes" } else { "no" })
            .body(Full::from(body))
            .expect("a request")
    }

    /// Sends one request to one of the layers, and says what is wrong with the answer.
    fn send(&self, sent: &Sent) -> impl Future<Output = Told> + Send + use<> {
        let service = self.chance.pick(&(0..self.services.len()).collect::<Vec<_>>());
        let service = self.services[service].clone();
        let request = Self::request(sent);
        let (journal, plan, sent) = (self.journal.clone(), self.plan, sent.clone());
        async move {
            let started = Instant::now();
            let longest = plan.wait + plan.lease * 3 + Duration::from_secs(60);
            // A task of its own, since a handler's panic goes on to whoever polls it.
            let asked = tokio::spawn(async move { ask(service, request).await });
            let abort = Aborts(asked.abort_handle());
            let Ok(asked) = timeout(longest, asked).await else {
                journal.wrong(format!("{sent:?} hangs for {:?}", started.elapsed()));
                return Told::Broken;
            };
            drop(abort);
            match asked {
                Ok(Some((told, body))) => {
                    if let Some(wrong) = wrong_answer(&journal, &plan, &sent, &told, &body) {
                        journal.wrong(format!("{sent:?} was told {told:?} `{body}`: {wrong}"));
                    }
                    told
                }
                Ok(None) | Err(_) => Told::Broken,
            }
        }
    }

    /// So many requests within some time; every fourth client leaves.
    pub(crate) async fn storm(&self, requests: u64, within: Duration) {
        let mut clients = JoinSet::new();
        let pause = u64::try_from(within.as_millis()).expect("a short time") / requests;
        for _ in 0..requests {
            let sending = self.send(&self.random());
            let leaves = self.chance.one_in(4).then(|| self.chance.up_to_ms(2500));
            clients.spawn(async move {
                match leaves {
                    Some(after) => drop(timeout(after, sending).await),
                    None => {
                        sending.await;
                    }
                }
            });
            if !self.chance.one_in(3) {
                sleep(Duration::from_millis(self.chance.below(2 * pause + 1))).await;
            }
        }
        while let Some(client) = clients.join_next().await {
            client.expect("a client does not panic");
        }
    }

    /// When all is quiet: nobody holds anything, and what is known to have ended is found so.
    pub(crate) async fn look_around(&self, store: &impl Store, drain: Duration) {
        let held: Vec<Listed> =
            records(store).await.into_iter().filter(|record| record.leased.is_some()).collect();
        if !held.is_empty() {
            self.journal.wrong(format!("nobody runs, and these are busy: {held:?}"));
        }
        for name in self.journal.names() {
            self.probe(&name).await;
        }
        for record in records(store).await {
            // A delivery's name lives for hold and retention: two weeks.
            if record.expires_in > Duration::from_secs(14 * 24 * 3600 + 1) {
                self.journal.wrong(format!("kept for ever: {record:?}"));
            }
        }
        for layer in &self.layers {
            let drained = layer.drain(drain).await;
            if !drained.is_clean() {
                self.journal.wrong(format!("left behind: {drained:?}"));
            }
        }
    }

    async fn probe(&self, name: &Name) {
        let known = self.journal.known(name);
        let runs = self.journal.count();
        let (delivery, order) = match name.business {
            true => (format!("probe-{}", name.key), Some(name.key.clone())),
            false => (name.key.clone(), None),
        };
        let order = order.or_else(|| self.plan.api.then(|| order_of(&delivery)));
        let amount = order.as_ref().unwrap_or(&delivery);
        let amount = amount.split('-').nth(1).and_then(|digits| digits.parse().ok());
        let sent = Sent {
            tenant: name.tenant.clone(),
            delivery,
            order,
            amount: amount.unwrap_or_default(),
            plainly: true,
        };
        let told = self.send(&sent).await;
        let ran = self.journal.count() > runs;
        let fits = match (&told, known) {
            // It may be another name of an operation by now, whose end it is told.
            (Told::Replayed | Told::Refused(_), _) if self.plan.business && !name.business => true,
            // Somebody sent another body, or the delivery has another operation now.
            (Told::Refused(RefusalKind::Mismatch | RefusalKind::BusinessKeyMissing), _) => true,
            (Told::Replayed | Told::Refused(RefusalKind::AnswerNotKept), Some(may_run)) => {
                !may_run && !ran
            }
            (Told::Replayed | Told::Refused(RefusalKind::AnswerNotKept), None) => {
                self.plan.recovery == Recovery::Resolve && !ran
            }
            (Told::Executed, Some(may_run)) => may_run || self.plan.recovery == Recovery::Rerun,
            (Told::Executed, None) => self.plan.recovery != Recovery::Refuse,
            // Whose process died before the store had heard of its end, of that nobody knows it.
            (Told::Refused(RefusalKind::OutcomeUnknown), known) => {
                (known.is_none() || self.plan.mortal) && !ran
            }
            _ => false,
        };
        if !fits {
            let truth = self.journal.truth(name);
            self.journal.wrong(format!(
                "{name:?}, known {known:?}, {truth:?}: {sent:?} was told {told:?} when all was quiet"
            ));
        }
    }

    #[track_caller]
    pub(crate) fn assert_nothing_wrong(&self) {
        let wrong = self.journal.all_wrong();
        assert!(
            wrong.is_empty(),
            "STRESS_SEED={} {:?}: {} things are wrong:\n{}",
            self.seed,
            self.plan,
            wrong.len(),
            wrong.join("\n")
        );
    }
}

/// The order whose delivery this is.
fn order_of(delivery: &str) -> String {
    format!("O-{}", delivery.split('-').nth(1).unwrap_or_default())
}

struct Aborts(tokio::task::AbortHandle);

impl Drop for Aborts {
    /// A client that leaves drops its request.
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn around(layer: &IdempotencyLayer, shop: &Shop) -> Service {
    let shop = shop.clone();
    let inner = service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
        let shop = shop.clone();
        async move {
            let operation = request.extensions().get::<Operation>().cloned();
            let Some(operation) = operation else {
                shop.journal.wrong("a handler was started without a grant".to_owned());
                return Err(BodyError::other("no operation"));
            };
            let plainly = request.headers()["x-plainly"] == "yes";
            shop.run(operation, plainly).await
        }
    });
    BoxCloneSyncService::new(ServiceBuilder::new().layer(layer.clone()).service(inner))
}

async fn ask(service: Service, request: Request<Full<Bytes>>) -> Option<(Told, String)> {
    let (head, body) = service.oneshot(request).await.ok()?.into_parts();
    let told = match (head.extensions.get::<Refusal>(), head.extensions.get::<Handled>()) {
        (Some(refusal), _) => Told::Refused(refusal.kind()),
        (None, Some(Handled::Replayed)) => Told::Replayed,
        (None, _) => Told::Executed,
    };
    let body = body.collect().await.ok()?.to_bytes();
    Some((told, String::from_utf8(body.to_vec()).expect("text")))
}

/// What is wrong with an answer, seen from outside.
fn wrong_answer(
    journal: &Journal,
    plan: &Plan,
    sent: &Sent,
    told: &Told,
    body: &str,
) -> Option<String> {
    if let Told::Refused(RefusalKind::OutcomeUnknown) = told
        && plan.storm == 0
    {
        // In good weather a lease is held to the end; of a delivery's order nobody says which.
        let order = sent.order.clone().unwrap_or_else(|| order_of(&sent.delivery));
        let of_delivery = order_of(&sent.delivery);
        let keys = [&*order, &*sent.delivery, &*of_delivery];
        let known = !journal.is_unknown(&sent.tenant, &keys);
        return known.then(|| "it is known".to_owned());
    }
    if matches!(told, Told::Refused(_)) {
        return body.contains("/run ").then(|| "a refusal shows an answer".to_owned());
    }
    if body.is_empty() {
        return (plan.api || matches!(told, Told::Executed)).then(|| "it is empty".to_owned());
    }
    let body = body.trim_end();
    let Some(name) = journal.of_body(body) else {
        return Some("nobody answered so".to_owned());
    };
    if name.tenant != sent.tenant {
        return Some("another tenant's".to_owned());
    }
    let own = match (&sent.order, name.business) {
        (Some(order), true) => name.key == *order,
        (None, true) => plan.business,
        (_, false) => name.key == sent.delivery,
    };
    if !own {
        return Some(format!("of another operation: {name:?}"));
    }
    let replayed = matches!(told, Told::Replayed);
    (replayed && !journal.may_be_replayed(&name, body)).then(|| "it did not happen".to_owned())
}

async fn records(store: &impl Store) -> Vec<Listed> {
    let mut records = Vec::new();
    let mut from = Cursor::START;
    loop {
        let page = store.scan(from, 500).await.expect("a page");
        records.extend(page.records);
        match page.next {
            Some(next) => from = next,
            None => return records,
        }
    }
}
