//! What is one operation, and what is another.

use tower_idempotency::Answer;
use tower_idempotency_sqlx::{DedupTable, Entry};

use super::{DEDUP, Db, Handled, charge, count, new, open};
use crate::operation::Delivery;

fn success() -> Answer {
    Answer::text("success")
}

#[tokio::test]
async fn a_new_delivery_id_of_the_same_business_key_is_the_same_operation() {
    let (pool, _held) = open().await;
    let first = Delivery::new("N-1").order("O-1").operation().await;
    assert_eq!(charge(&pool, &first, success()).await, Handled::Charged(success()));
    let again = Delivery::new("N-2").order("O-1").operation().await;
    assert_eq!(charge(&pool, &again, Answer::text("no")).await, Handled::Done(success()));
    let other = Delivery::new("N-3").order("O-2").operation().await;
    assert!(matches!(charge(&pool, &other, success()).await, Handled::Charged(_)));
}

#[tokio::test]
async fn a_delivery_id_of_another_business_key_is_a_mismatch() {
    let (pool, _held) = open().await;
    let first = Delivery::new("N-1").order("O-1").operation().await;
    charge(&pool, &first, success()).await;
    let foreign = Delivery::new("N-1").order("O-2").operation().await;
    assert_eq!(charge(&pool, &foreign, success()).await, Handled::Mismatch);
    assert_eq!(DEDUP.find(&pool, &foreign).await.unwrap(), None);

    // Even where both have a row: this delivery belongs to the first.
    let second = Delivery::new("N-2").order("O-2").operation().await;
    charge(&pool, &second, success()).await;
    assert_eq!(charge(&pool, &foreign, success()).await, Handled::Mismatch);
    assert_eq!(count(&pool, "charges").await, 2);
}

/// A policy that gets a business key, or loses it, must not make what was done new.
#[tokio::test]
async fn a_delivery_is_known_with_and_without_its_business_key() {
    let (pool, _held) = open().await;
    charge(&pool, &Delivery::new("N-1").operation().await, success()).await;
    let with = Delivery::new("N-1").order("O-1").operation().await;
    assert_eq!(charge(&pool, &with, success()).await, Handled::Done(success()));

    charge(&pool, &Delivery::new("N-2").order("O-2").operation().await, success()).await;
    let without = Delivery::new("N-2").operation().await;
    assert_eq!(charge(&pool, &without, success()).await, Handled::Done(success()));
    assert_eq!(count(&pool, "charges").await, 2);
}

#[tokio::test]
async fn other_rules_and_other_scopes_are_other_operations() {
    const RENAMED: DedupTable<Db> = DEDUP.under("fulfil");
    let (pool, _held) = open().await;
    let delivery = Delivery::new("N-1");
    for other in [
        delivery,
        Delivery { tenant: "other", ..delivery },
        Delivery { rule: "refund", ..delivery },
    ] {
        let handled = charge(&pool, &other.operation().await, success()).await;
        assert_eq!(handled, Handled::Charged(success()), "{other:?}");
    }
    // A rule under a new name keeps its rows where the table says so.
    let renamed = Delivery { rule: "fulfil-v2", ..delivery }.operation().await;
    assert_eq!(DEDUP.find(&pool, &renamed).await.unwrap(), None);
    assert_eq!(RENAMED.find(&pool, &renamed).await.unwrap(), Some(success()));
}

/// What a collation, a padding, an end of a string or a cut would take for one.
#[tokio::test]
async fn identities_are_compared_byte_by_byte() {
    let (pool, _held) = open().await;
    let zero = format!("a{}u0000", '\\').leak();
    let zero_and_more = format!("a{}u0000b", '\\').leak();
    let long = "x".repeat(255).leak();
    let longer = format!("{}y", "x".repeat(254)).leak();
    let ids: [&'static str; 10] =
        ["a", "A", "a ", "ä", zero, zero_and_more, "1", "01", long, longer];
    for (number, id) in ids.into_iter().enumerate() {
        let operation = Delivery::new(id).operation().await;
        let answer = Answer::text(number.to_string());
        assert_eq!(charge(&pool, &operation, answer.clone()).await, Handled::Charged(answer));
    }
    for (number, id) in ids.into_iter().enumerate() {
        let operation = Delivery::new(id).operation().await;
        let answer = Answer::text(number.to_string());
        assert_eq!(charge(&pool, &operation, success()).await, Handled::Done(answer), "{id:?}");
    }
}

#[tokio::test]
async fn a_scope_that_no_row_can_hold_is_an_error_and_not_cut() {
    let (pool, _held) = open().await;
    let scope = |length| Delivery { tenant: "t".repeat(length).leak(), ..Delivery::new("N-1") };
    let mut tx = pool.begin().await.unwrap();
    let error = DEDUP.enter(&mut tx, &scope(1025).operation().await).await.unwrap_err();
    assert!(error.to_string().contains("the scope has 1025 bytes"), "{error}");
    let row = new(DEDUP.enter(&mut tx, &scope(1024).operation().await).await.unwrap());
    row.commit(tx, success()).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let found = DEDUP.enter(&mut tx, &scope(1024).operation().await).await.unwrap();
    assert!(matches!(found, Entry::Done(_)));
}
