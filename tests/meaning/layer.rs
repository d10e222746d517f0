//! Through the layer: what differs is refused and told with its name, what means the same is answered
//! from the first.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use axum::{Router, body::Body, routing::post};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_idempotency::{
    Field, FieldValue, IdempotencyLayer, Input, MemoryStore, Mismatch, Policy, Refusal, Rule,
    Scope, form, header, json, path, query,
};

struct App {
    router: Router,
    runs: Arc<AtomicU32>,
    told: Arc<Mutex<Vec<Mismatch>>>,
}

impl App {
    fn new(policy: Policy) -> Self {
        let told: Arc<Mutex<Vec<Mismatch>>> = Arc::default();
        let tell = told.clone();
        let policy = policy.on_mismatch(move |m: &Mismatch| tell.lock().unwrap().push(m.clone()));
        let rule =
            Rule::new("pay", policy).path("/pay/{order}").methods([Method::POST, Method::PUT]);
        let runs: Arc<AtomicU32> = Arc::default();
        let count = runs.clone();
        let handler = move || {
            let count = count.clone();
            async move { format!("run {}", count.fetch_add(1, Ordering::SeqCst) + 1) }
        };
        let router = Router::new()
            .route("/pay/{order}", post(handler.clone()).put(handler))
            .layer(IdempotencyLayer::new(MemoryStore::new(), rule));
        Self { router, runs, told }
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn pay(&self, body: impl Into<Body>) -> (StatusCode, String) {
        self.send(request(body)).await
    }

    #[track_caller]
    fn ran(&self, runs: u32) {
        assert_eq!(self.runs.load(Ordering::SeqCst), runs);
    }

    fn told(&self) -> Vec<Mismatch> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

fn request(body: impl Into<Body>) -> Request<Body> {
    Request::post("/pay/7").header("Idempotency-Key", "k").body(body.into()).unwrap()
}

fn api() -> Policy {
    Policy::api(Scope::everyone())
}

fn names(mismatch: &[Mismatch]) -> Vec<Option<Vec<&str>>> {
    mismatch
        .iter()
        .map(|m| m.fields.as_ref().map(|fields| fields.iter().map(String::as_str).collect()))
        .collect()
}

fn first() -> (StatusCode, String) {
    (StatusCode::OK, "run 1".to_owned())
}

#[tokio::test]
async fn a_tampered_amount_is_refused_and_somebody_is_told_its_name() {
    let webhook = Policy::webhook(json("/notifyId")).compare([json("/amount"), json("/currency")]);
    let app = App::new(webhook);
    let body =
        |amount: &str, more: &str| format!(r#"{{"notifyId": "n-1", "amount": {amount}{more}}}"#);
    assert_eq!(app.pay(body("960", r#", "currency": "EUR""#)).await, first());
    // Spelled in another way, and beside what is compared anything.
    assert_eq!(app.pay(body("9.60e2", r#", "sign": "x", "currency": "EUR""#)).await, first());
    assert_eq!(
        app.pay(format!("\n{}", body("960.00", r#", "currency": "\u0045UR""#))).await,
        first()
    );
    assert!(app.told().is_empty());
    for (amount, currency, names_of) in [
        ("1", "EUR", vec!["JSON field /amount"]),
        ("\"960\"", "EUR", vec!["JSON field /amount"]),
        ("null", "EUR", vec!["JSON field /amount"]),
        ("960", "USD", vec!["JSON field /currency"]),
        ("961", "USD", vec!["JSON field /amount", "JSON field /currency"]),
    ] {
        let (status, text) = app.pay(body(amount, &format!(r#", "currency": "{currency}""#))).await;
        assert_eq!(status, 422, "{text}");
        assert!(text.contains("must be: JSON field /amount, JSON field /currency"), "{text}");
        let told = app.told();
        assert_eq!(names(&told), [Some(names_of)]);
        assert_eq!((&*told[0].rule, &*told[0].key), ("pay", "n-1"));
    }
    // Left out is a difference too.
    assert_eq!(app.pay(body("960", "")).await.0, 422);
    assert_eq!(names(&app.told()), [Some(vec!["JSON field /currency"])]);
    app.ran(1);
}

#[tokio::test]
async fn a_compared_field_that_cannot_be_read_is_refused_and_nothing_runs() {
    let app = App::new(Policy::webhook(json("/id")).compare([json("/amount")]));
    for amount in [r#"1, "amount": 1"#, r#"{"a": 1, "a": 2}"#, r#""\ud800""#] {
        let (status, text) = app.pay(format!(r#"{{"id": 1, "amount": {amount}}}"#)).await;
        assert_eq!(status, 400, "{text}");
    }
    app.ran(0);
    assert!(app.told().is_empty());
    assert_eq!(app.pay(r#"{"id": 1, "amount": 1}"#).await, first());
}

#[tokio::test]
async fn fields_of_several_kinds_are_compared_together() {
    let policy = api().compare([header("X-Shop")]).compare([path("order")]).compare([query("to")]);
    let app = App::new(policy);
    let send = |shop: &str, uri: &str| {
        let request = Request::post(uri).header("Idempotency-Key", "k").header("X-Shop", shop);
        app.send(request.body(Body::from("anything")).unwrap())
    };
    assert_eq!(send("s", "/pay/7?to=a").await, first());
    assert_eq!(send("s", "/pay/%37?x=1&to=%61").await, first());
    for (shop, uri, name) in [
        ("t", "/pay/7?to=a", "header X-Shop"),
        ("s", "/pay/8?to=a", "path parameter order"),
        ("s", "/pay/7?to=b", "query parameter to"),
        ("s", "/pay/7", "query parameter to"),
    ] {
        assert_eq!(send(shop, uri).await.0, 422, "{name}");
        assert_eq!(names(&app.told()), [Some(vec![name])]);
    }
    app.ran(1);
}

#[tokio::test]
async fn case_45_a_json_body_is_compared_by_its_meaning_where_the_policy_says_so() {
    let bodies = [
        r#"{"b":2,"a":1}"#,
        r#"{ "a": 1, "b": 2 }"#,
        r#"{"a":1.0,"b":20e-1}"#,
        r#"{"\u0061":1,"b":2}"#,
    ];
    let app = App::new(api().compare([json("")]));
    assert_eq!(app.pay(r#"{"a":1,"b":2}"#).await, first());
    for body in bodies {
        assert_eq!(app.pay(body).await, first(), "{body}");
    }
    for other in
        [r#"{"a":1}"#, r#"{"a":1,"b":3}"#, r#"{"a":1,"b":"2"}"#, r#"{"a":1,"b":2,"c":null}"#]
    {
        assert_eq!(app.pay(other).await.0, 422, "{other}");
    }
    // By default it is its bytes.
    let app = App::new(api());
    assert_eq!(app.pay(r#"{"a":1,"b":2}"#).await, first());
    for body in bodies {
        assert_eq!(app.pay(body).await.0, 422, "{body}");
    }
}

/// The field `amount` of a multipart body, as an application would read it.
struct Amount;

impl Field for Amount {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        let text = String::from_utf8_lossy(from.body());
        let part = text.split("name=\"amount\"\r\n\r\n").nth(1);
        Ok(part
            .and_then(|part| part.lines().next())
            .map(|amount| FieldValue::new(amount.to_owned())))
    }

    fn name(&self) -> String {
        "amount".to_owned()
    }
}

#[tokio::test]
async fn case_46_a_multipart_retry_with_a_new_boundary_is_compared_by_a_field_of_ones_own() {
    let multipart = |boundary: &str, amount: &str| {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n{amount}\r\n\
             --{boundary}--\r\n"
        );
        let mut request = request(body);
        let content_type = format!("multipart/form-data; boundary={boundary}");
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        request
    };
    let app = App::new(api().compare([Amount]));
    assert_eq!(app.send(multipart("one", "10")).await, first());
    assert_eq!(app.send(multipart("two", "10")).await, first());
    assert_eq!(app.send(multipart("three", "11")).await.0, 422);
    assert_eq!(names(&app.told()), [Some(vec!["amount"])]);
    app.ran(1);
}

#[tokio::test]
async fn a_json_body_is_compared_but_for_what_is_ignored() {
    let policy = api().ignore([json("/notify_time"), json("/sign")]).ignore([json("/data/0/seen")]);
    let app = App::new(policy);
    let whole =
        r#"{"amount": 10, "data": [{"seen": 1, "x": 2}], "notify_time": "t1", "sign": "s1"}"#;
    assert_eq!(app.pay(whole).await, first());
    for same in [
        r#"{"amount": 10.0, "data": [{"seen": 2, "x": 2}], "notify_time": "t2", "sign": "s2"}"#,
        r#"{"sign": [{"a": "]}\"", "a": [1, -2.5e+7, null]}], "data": [{"x": 2}], "amount": 1e1}"#,
        r#"{"data": [{"x": 2, "seen": {}}], "amount": 10, "sign": 1, "sign": 2}"#,
    ] {
        assert_eq!(app.pay(same).await, first(), "{same}");
    }
    for other in [
        r#"{"amount": 11, "data": [{"x": 2}]}"#,
        r#"{"amount": 10, "data": [{"x": 3}]}"#,
        r#"{"amount": 10, "data": [{"x": 2}, {"x": 2}]}"#,
        r#"{"amount": 10, "data": [{"x": 2, "sign": 1}]}"#,
        r#"{"amount": 10, "data": [{"x": 2}], "Sign": 1}"#,
        r#"{"amount": 10}"#,
        r#"[{"amount": 10, "data": [{"x": 2}]}]"#,
    ] {
        let (status, text) = app.pay(other).await;
        assert_eq!(status, 422, "{other}");
        assert!(text.contains("but for JSON field /notify_time, JSON field /sign"), "{text}");
    }
    assert!(names(&app.told()).iter().all(Option::is_none), "which of them differs is not known");
    for malformed in ["", "sign=1", "{", r#"{"a": 1, "a": 1}"#] {
        assert_eq!(app.pay(malformed).await.0, 400, "{malformed}");
    }
    app.ran(1);
}

#[tokio::test]
async fn method_path_and_query_are_compared_beside_the_body() {
    let app = App::new(api().ignore([json("/sign")]));
    let send = |method: Method, uri: &str| {
        let request = Request::builder().method(method).uri(uri).header("Idempotency-Key", "k");
        app.send(request.body(Body::from(r#"{"a": 1}"#)).unwrap())
    };
    assert_eq!(send(Method::POST, "/pay/7?a").await, first());
    for (method, uri) in [
        (Method::PUT, "/pay/7?a"),
        (Method::POST, "/pay/8?a"),
        (Method::POST, "/pay/7"),
        (Method::POST, "/pay/7?b"),
    ] {
        assert_eq!(send(method, uri).await.0, 422, "{uri}");
    }
    assert_eq!(send(Method::POST, "/pay/7?a").await, first());
}

#[tokio::test]
async fn a_form_is_compared_but_for_what_is_ignored() {
    let app = App::new(Policy::webhook(form("id")).ignore([form("notify_time"), form("sign")]));
    assert_eq!(app.pay("id=1&amount=9%2E60&subject=%B2%E2&notify_time=t1&sign=s1").await, first());
    for same in [
        "sign=s2&subject=%b2%E2&amount=9.60&id=1",
        "id=1&amount=9.60&subject=%B2%E2&sign=a&sign=b&&%73ign=c",
    ] {
        assert_eq!(app.pay(same).await, first(), "{same}");
    }
    for other in [
        "id=1&amount=9.6&subject=%B2%E2",
        "id=1&amount=9.60&subject=%B2%E3",
        "id=1&amount=9.60",
        "id=1&amount=9.60&subject=%B2%E2&x",
        "id=1&amount=9.60&amount=9.60&subject=%B2%E2",
        "id=1&amoun=t9.60&subject=%B2%E2",
    ] {
        assert_eq!(app.pay(other).await.0, 422, "{other}");
    }
    app.ran(1);
    // Which of two fields with one name counts, readers disagree about: their order matters.
    let app = App::new(Policy::webhook(form("id")).ignore([form("sign")]));
    assert_eq!(app.pay("id=1&a=1&a=2&b=3").await, first());
    assert_eq!(app.pay("a=1&b=3&a=2&id=1").await, first());
    assert_eq!(app.pay("id=1&a=2&a=1&b=3").await.0, 422);
}

#[test]
fn what_cannot_be_ignored_is_an_error_of_the_policy() {
    let error = |policy: Policy| policy.check().unwrap_err().to_string();
    let mixed = api().ignore([json("/sign")]).ignore([form("sign")]);
    assert!(error(mixed).contains("JSON field /sign and form field sign cannot be ignored in one"));
    assert!(error(api().ignore([json("")])).contains("nothing would be compared"));
    let nothing: [tower_idempotency::Json; 0] = [];
    assert!(error(api().ignore(nothing)).contains(".compare([json(\"\")])"));
    // The last of two choices counts.
    api().ignore([json("")]).compare([json("/a")]).check().unwrap();
    api().ignore([json("")]).no_fingerprint().check().unwrap();
    api().compare([json("/a")]).ignore([form("sign")]).check().unwrap();
}
