//! The choices of a policy, each with its default beside it.

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use tower_idempotency::{
    Answer, MemoryStore, Policy, RefusalKind, Rule, Rules, Scope, Store, json, store::Cursor,
};

use crate::house::{Body, House, api, request, request_of, text};

#[derive(Clone)]
struct Tenant(&'static str);

impl AsRef<str> for Tenant {
    fn as_ref(&self) -> &str {
        self.0
    }
}

fn of_tenant(tenant: Tenant) -> Request<Body> {
    let mut request = request("k", "body");
    request.extensions_mut().insert(tenant);
    request
}

#[tokio::test(start_paused = true)]
async fn tenants_that_choose_the_same_key_do_not_meet() {
    let house = House::new(Policy::api(Scope::extension::<Tenant>()));
    house.call(of_tenant(Tenant("a"))).await.is_executed();
    house.call(of_tenant(Tenant("b"))).await.is_executed();
    house.call(of_tenant(Tenant("a"))).await.is_replayed();
    assert_eq!(house.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_scope_that_is_missing_is_a_500_that_names_the_type() {
    let house = House::new(Policy::api(Scope::extension::<Tenant>()));
    let reply = house.send("k").await;
    assert_eq!(reply.is_refused(RefusalKind::ScopeMissing).status, 500);
    assert!(reply.text().contains("Tenant"), "{}", reply.text());
    assert_eq!((house.runs(), house.sent().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_scope_in_a_header_must_be_there_once() {
    let house = House::new(Policy::api(Scope::header("x-tenant")));
    let with = |tenants: &[&'static str]| {
        let mut request = request("k", "body");
        for tenant in tenants {
            request.headers_mut().append("x-tenant", HeaderValue::from_static(tenant));
        }
        request
    };
    house.call(with(&["a"])).await.is_executed();
    house.call(with(&["b"])).await.is_executed();
    house.call(with(&["a"])).await.is_replayed();
    for wrong in [&[][..], &[""], &["a", "b"], &["a", "a"]] {
        let reply = house.call(with(wrong)).await;
        assert_eq!(reply.is_refused(RefusalKind::ScopeMissing).status, 400, "{wrong:?}");
    }
}

fn without_key() -> Request<Body> {
    let mut request = request("k", "body");
    request.headers_mut().remove("idempotency-key");
    request
}

#[tokio::test(start_paused = true)]
async fn a_request_without_identity_is_refused_or_passes_unprotected_where_that_is_wished() {
    let house = House::new(api());
    house.call(without_key()).await.is_refused(RefusalKind::IdentityMissing);
    let house = House::new(api().optional());
    for _ in 0..2 {
        let reply = house.call(without_key()).await;
        assert_eq!((reply.text(), reply.handled, reply.refused), ("done", None, None));
    }
    assert_eq!((house.runs(), house.sent().len()), (2, 0));
    // A malformed one is no absent one.
    house.send("a b").await.is_refused(RefusalKind::IdentityMalformed);
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn an_optional_identity_in_the_body_leaves_the_body_whole() {
    let house = House::with(Policy::webhook(json("/id")).optional(), |request| async {
        let body = http_body_util::BodyExt::collect(request.into_body()).await;
        crate::house::respond(200, Full::new(body.map_err(|e| e.to_string())?.to_bytes()))
    });
    let reply = house.call(request("", r#"{"other":1}"#)).await;
    assert_eq!((reply.text(), reply.handled), (r#"{"other":1}"#, None));
}

#[tokio::test(start_paused = true)]
async fn strict_demands_quotes_and_by_default_both_are_the_same_key() {
    let house = House::new(api());
    house.send("k").await.is_executed();
    house.send("\"k\"").await.is_replayed();
    let house = House::new(api().strict());
    house.send("k").await.is_refused(RefusalKind::IdentityMalformed);
    house.send("\"k\"").await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_secret_changes_the_names_of_records_and_the_prints() {
    let memory = MemoryStore::new();
    let open = House::of(memory.clone(), Rule::new("pay", api()), |_| async { text(200, "") });
    open.send("k").await.is_executed();
    let layer = open.layer.clone().secret(&[7; 32]);
    let inner = tower::service_fn(|_| async { text(200, "") });
    let hidden = tower::ServiceBuilder::new().layer(layer).service(inner);
    tower::ServiceExt::oneshot(hidden, request("k", "body")).await.unwrap();
    assert_eq!(memory.len(), 2, "the same request has another name");
    open.send("k").await.is_replayed();
    assert_eq!(memory.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_label_shows_the_identity_unless_it_is_private() {
    for (policy, shows) in [(api(), true), (api().private_label(), false)] {
        let house = House::with(policy, |_| async { text(504, "") });
        house.send("a-name").await.is_executed();
        let label = String::from_utf8(house.record().await.label.to_vec()).unwrap();
        assert!(label.starts_with("pay "), "{label}");
        assert_eq!(label.contains("a-name"), shows, "{label}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_label_has_256_bytes_at_most_however_long_name_and_identity_are() {
    // Up to the bound it is whole; beyond it is cut.
    for (name, identity) in [(1, 253), (1, 254), (1, 255), (300, 255)] {
        let (name, identity) = ("r".repeat(name), "k".repeat(identity));
        let whole = format!("{name} {identity}");
        let rule = Rule::new(name, api());
        let house = House::of(MemoryStore::new(), rule, |_| async { text(504, "") });
        house.send(&identity).await.is_executed();
        assert_eq!(house.record().await.label, whole.as_bytes()[..whole.len().min(256)]);
    }
}

#[tokio::test(start_paused = true)]
async fn cookies_are_replayed_only_where_that_is_wished() {
    for (policy, kept) in [(api(), 0), (api().keep_cookies(), 2)] {
        let house = House::with(policy, |_| async {
            let mut answer = text(200, "done")?;
            for cookie in ["a=1", "b=2"] {
                answer.headers_mut().append("set-cookie", HeaderValue::from_static(cookie));
            }
            Ok(answer)
        });
        assert_eq!(house.send("k").await.headers.get_all("set-cookie").iter().count(), 2);
        let reply = house.send("k").await;
        assert_eq!(reply.is_replayed().headers.get_all("set-cookie").iter().count(), kept);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_hears_no_in_its_own_way_where_there_is_one() {
    let house = House::new(api().refuse_with(|refusal| match refusal.kind() {
        RefusalKind::IdentityMissing => {
            Some(Answer::text("fail").with_status(StatusCode::IM_A_TEAPOT))
        }
        _ => None,
    }));
    let reply = house.call(without_key()).await;
    assert_eq!((reply.status, reply.text()), (418, "fail"));
    reply.is_refused(RefusalKind::IdentityMissing);
    let usual = house.send("a b").await;
    assert_eq!(usual.header("content-type"), Some("application/problem+json"));
}

#[tokio::test(start_paused = true)]
async fn rules_on_one_layer_keep_their_keys_apart_and_leave_other_requests_alone() {
    let rules = Rules::new()
        .add(Rule::new("pay", api()).path("/pay"))
        .add(Rule::new("refund", api()).path("/refund/{order}"));
    let memory = MemoryStore::new();
    let house = House::of(memory.clone(), rules, |_| async { text(200, "done") });
    let to = |path: &str| {
        let mut request = request_of("k", Full::<Bytes>::default());
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    house.call(to("/pay")).await.is_executed();
    house.call(to("/refund/7")).await.is_executed();
    house.call(to("/pay")).await.is_replayed();
    // The path is part of the fingerprint.
    house.call(to("/refund/8")).await.is_refused(RefusalKind::Mismatch);
    assert_eq!(house.call(to("/else")).await.handled, None);
    assert_eq!(memory.scan(Cursor::START, 9).await.unwrap().records.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_scope_or_a_source_that_panics_claims_nothing() {
    let source = |_: &tower_idempotency::Input<'_>| panic!("a bug in the source");
    let house = House::new(Policy::webhook(source));
    assert!(house.client("k").await.unwrap_err().is_panic());
    house.drained().await;
    assert_eq!((house.runs(), house.sent().len()), (0, 0));
}
