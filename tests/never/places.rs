//! Several layers over one store: with other secrets, other policies, as clones.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Operation, Policy, RefusalKind, RequestBody, Rule, header,
};

use crate::shop::{Asked, Runs, Shop, api, keyed, text};

/// What a layer answers around a handler that answers with its downstream key.
async fn ask(layer: &IdempotencyLayer, runs: &Runs, request: Request<Full<Bytes>>) -> (u16, Bytes) {
    let runs = runs.clone();
    let inner = service_fn(move |request: Asked| {
        let runs = runs.clone();
        async move {
            runs.add();
            let operation = request.extensions().get::<Operation>().expect("it runs");
            Ok::<_, std::convert::Infallible>(text(200, operation.downstream_key("charge")))
        }
    });
    let service = ServiceBuilder::new().layer(layer.clone()).service(inner);
    let Ok(response) = service.oneshot(request).await;
    let status = response.status().as_u16();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("whole");
    (status, body.to_bytes())
}

#[tokio::test]
async fn layers_with_other_secrets_share_no_record_though_they_share_a_store() {
    let store = MemoryStore::new();
    let rule = || Rule::new("pay", api());
    let plain = IdempotencyLayer::new(store.clone(), rule());
    let first = IdempotencyLayer::new(store.clone(), rule()).secret(&[1; 32]);
    let second = plain.clone().secret(&[2; 32]);
    let again = IdempotencyLayer::new(store.clone(), rule()).secret(&[2; 32]);
    let runs = Runs::new();
    let mut answers = Vec::new();
    for layer in [&plain, &first, &second] {
        answers.push(ask(layer, &runs, keyed("k")).await);
    }
    assert_eq!(runs.count(), 3, "to each it was new");
    // What is done downstream is one all the same.
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    for layer in [&plain, &first, &second, &again] {
        assert_eq!(ask(layer, &runs, keyed("k")).await, answers[0]);
    }
    assert_eq!((runs.count(), store.len()), (3, 3));
    // A clone with a secret is the same layer where it ends.
    assert!(plain.drain(Duration::ZERO).await.is_clean());
    assert_eq!(ask(&second, &runs, keyed("k")).await.0, 503);
    assert_eq!(ask(&again, &runs, keyed("k")).await, answers[0]);
}

#[tokio::test]
async fn one_rule_with_other_policies_in_two_layers_is_one_operation() {
    let store = MemoryStore::new();
    let policies: [fn() -> Policy; 4] = [
        api,
        || api().no_fingerprint(),
        || api().answer_limit(0),
        || Policy::webhook(header("Idempotency-Key")),
    ];
    for (place, first) in policies.iter().enumerate() {
        for (other, second) in policies.iter().enumerate() {
            let key = format!("{place}-{other}");
            let one = Shop::new(store.clone(), first(), |_: Asked| async { text(200, "paid") });
            let two = Shop::new(store.clone(), second(), |_| async { text(200, "paid again") });
            one.send(keyed(&key)).await.assert_text("paid");
            let answer = two.send(keyed(&key)).await;
            let not_kept = answer.refusal() == Some(RefusalKind::AnswerNotKept);
            assert!(not_kept || answer.is_replay(), "{answer:?}");
            assert_eq!(two.runs.count(), 0);
            // Another body is refused wherever both compare it.
            let mut foreign = keyed(&key);
            *foreign.body_mut() = Full::from("amount=999");
            let answer = two.send(foreign).await;
            let compares = [0, 2];
            if compares.contains(&place) && compares.contains(&other) {
                assert_eq!(answer.refusal(), Some(RefusalKind::Mismatch));
            }
            assert_eq!(two.runs.count(), 0);
        }
    }
}

#[tokio::test]
async fn one_rule_in_a_layer_inside_of_its_own_name_runs_once_and_another_secret_claims_its_own() {
    for (secret, records) in [(None, 1), (Some([7; 32]), 2)] {
        let store = MemoryStore::new();
        let rule = || Rule::new("pay", api());
        let outer = IdempotencyLayer::new(store.clone(), rule());
        let inner = IdempotencyLayer::new(store.clone(), rule());
        let inner = secret.iter().fold(inner, |layer, secret| layer.secret(secret));
        let runs = Runs::new();
        let counted = runs.clone();
        let handler = service_fn(move |_: Request<RequestBody<RequestBody<Full<Bytes>>>>| {
            counted.add();
            async { Ok::<_, std::convert::Infallible>(text(200, "paid")) }
        });
        let service = ServiceBuilder::new().layer(outer).layer(inner).service(handler);
        for _ in 0..3 {
            let Ok(answer) = service.clone().oneshot(keyed("k")).await;
            assert_eq!(answer.status(), 200);
        }
        assert_eq!((runs.count(), store.len()), (1, records));
    }
}
