//! The text of a one-time token stands in no event, span, label or `Debug`, whatever becomes of it.

use std::{
    fmt::{Debug, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::sleep;
use tower_idempotency::{
    RefusalKind, RequestBody, Scope, Store,
    store::{Cursor, StoreErrorKind},
    test_util::{Fault, Transition},
};
use tracing::{
    Event, Id, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Record},
};

use crate::{
    house::{Asked, House, SECOND, operation, text},
    token_house::{asked, bringing, for_an_order, free, issue, issuer, of_order, paying},
};

/// Everything that anybody says on this thread, spans and their fields among it.
#[derive(Clone, Default)]
struct Everything {
    said: Arc<Mutex<String>>,
    spans: Arc<AtomicU64>,
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = writeln!(self.0, "{}={value:?}", field.name());
    }
}

impl Everything {
    fn visit(&self, visit: impl FnOnce(&mut Fields<'_>)) {
        visit(&mut Fields(&mut self.said.lock().unwrap()));
    }
}

impl Subscriber for Everything {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        self.visit(|fields| attributes.record(fields));
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        self.visit(|fields| values.record(fields));
    }
    fn event(&self, event: &Event<'_>) {
        self.visit(|fields| event.record(fields));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Whatever a test has seen of anything.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<String>>);

impl Seen {
    fn add(&self, what: &dyn Debug) {
        let _ = writeln!(self.0.lock().unwrap(), "{what:?}");
    }
}

/// What a handler is told of its operation.
fn told(request: &Asked) -> String {
    let operation = operation(request);
    let entry = operation.ledger_entry();
    let key = operation.downstream_key("charge");
    format!(
        "{operation:?} {} {} {:?} {key} {entry:?} {}",
        operation.key(),
        operation.scope(),
        operation.delivery_id(),
        String::from_utf8_lossy(operation.key_bytes())
    )
}

#[tokio::test(start_paused = true)]
async fn the_text_of_a_token_is_seen_nowhere_but_in_the_hands_of_its_owner() {
    let everything = Everything::default();
    // While there is but one subscriber, an event that another thread comes to first, where nobody
    // listens, is switched off for all.
    let _another = tracing::Dispatch::new(Everything::default());
    let _listening = tracing::subscriber::set_default(everything.clone());
    let seen = Seen::default();
    let mut tokens = Vec::new();
    for policy in [free(), for_an_order(), for_an_order().token_bound_to(Scope::header("X-User"))] {
        seen.add(&policy);
        let (inside, statuses) = (seen.clone(), Mutex::new(vec![504, 200, 503]).into());
        let house = House::with(policy, move |request: Asked| {
            inside.add(&told(&request));
            let statuses: &Arc<Mutex<Vec<u16>>> = &statuses;
            std::future::ready(text(statuses.lock().unwrap().pop().unwrap_or(200), "done"))
        });
        seen.add(&issuer(&house));
        for request in [asked(), of_order("O-1"), of_order("O-2").bound_to("ann")] {
            let token = issue(&house, request.clone()).await;
            tokens.push(token);
            seen.add(&issuer(&house).issue(request.clone()).await);
            seen.add(&(request, token));
            house.faults.next(Transition::Claim, Fault::LoseAnswer(StoreErrorKind::Timeout));
            // Released, kept, replayed, a mismatch, somebody else's, and in a place it does not belong.
            for (order, amount) in [("O-1", 1), ("O-1", 1), ("O-1", 1), ("O-1", 2), ("O-2", 1)] {
                let mut sent = paying(&token, order, amount);
                sent.headers_mut().insert("X-User", "ann".parse().unwrap());
                let reply = house.call(sent).await;
                seen.add(&reply);
            }
            let mut twice = paying(&token, "O-1", 1);
            twice.headers_mut().append("X-Once", token.to_text().parse().unwrap());
            seen.add(&house.call(twice).await);
            let damaged = format!("\"{}", token.to_text());
            seen.add(&house.call(bringing(&damaged, "{}")).await);
            seen.add(&house.call(bringing(&format!("{}x", token.to_text()), "{}")).await);
        }
        seen.add(&house.memory.scan(Cursor::START, 100).await);
        house.faults.down(StoreErrorKind::Unreachable);
        seen.add(&house.pay(&tokens[0], "O-1", 1).await);
        seen.add(&issuer(&house).issue(of_order("O-1")).await);
        sleep(SECOND).await;
    }
    let said = everything.said.lock().unwrap().clone() + &seen.0.lock().unwrap();
    for needed in ["token issued", "refused: ", "mismatch", "idempotency", "store unavailable"] {
        assert!(said.contains(needed), "{needed} was provoked");
    }
    assert!(tokens.len() >= 9);
    for token in tokens {
        assert!(!said.contains(&token.to_text()));
        // Nor as bytes, as a `Debug` of an array or of `Bytes` would write them.
        assert!(!said.contains(&format!("{:?}", token.as_bytes())));
        let hex: String = token.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!said.contains(&hex));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_the_same_name_of_a_free_token_each_time() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let noted = names.clone();
    let house = House::with(free(), move |request: http::Request<RequestBody<_>>| {
        let operation = operation(&request);
        noted
            .lock()
            .unwrap()
            .push((operation.key().to_owned(), operation.downstream_key("charge")));
        std::future::ready(text(503, "busy"))
    });
    let token = issue(&house, asked()).await;
    for _ in 0..2 {
        house.call(bringing(&token.to_text(), "")).await.is_executed();
    }
    let other = issue(&house, asked()).await;
    house.call(bringing(&other.to_text(), "")).await.is_executed();
    let names = names.lock().unwrap().clone();
    assert_eq!(names[0], names[1]);
    assert!(names[0].0 != names[2].0 && names[0].1 != names[2].1);
    assert_eq!(names[0].0.len(), 22);
    // It is written like a token, and is none.
    let refused = house.call(bringing(&names[0].0, "")).await;
    refused.is_refused(RefusalKind::TokenUnknown);
}
