//! Which row of a ledger is that of an operation that a one-time token was for.

use bytes::Bytes;
use http_body_util::Full;
use tower_idempotency::{
    Answer, LedgerEntry,
    operations::{Operations, Settle},
    store::Cursor,
    test_util::contract::World,
};

use crate::{
    house::{Asked, House, operation, respond, text},
    table::Table,
    token_house::{asked, bringing, for_an_order, free, issue, of_order},
};

/// A row of an order, under whatever delivery.
fn of(order: &'static str, delivery: &'static str) -> LedgerEntry {
    LedgerEntry::new("pay", "", order, Some(Bytes::from_static(delivery.as_bytes())))
}

/// Its handler enters first, and ends as nobody knows for `O-2`.
fn house(table: &Table) -> House {
    let entering = table.clone();
    House::with(for_an_order().ledger(table.clone()), move |request: Asked| {
        let operation = operation(&request);
        let found = entering.enter(&operation).is_some();
        let status = if operation.key() == "O-2" { 504 } else { 200 };
        std::future::ready(text(status, if found { "was done" } else { "ran" }))
    })
}

#[tokio::test(start_paused = true)]
async fn the_row_of_an_order_is_found_whether_it_was_done_with_a_token_or_without() {
    let table = Table::default();
    table.put(&of("O-1", "N-1"), "charged");
    let house = house(&table);
    let token = issue(&house, of_order("O-1")).await;
    assert_eq!(house.pay(&token, "O-1", 1).await.text(), "charged");

    let token = issue(&house, of_order("O-3")).await;
    assert_eq!(house.pay(&token, "O-3", 1).await.text(), "ran");
    assert!(table.row(&of("O-3", "N-3")).is_some(), "the layer has sealed one of the same kind");
    assert!(table.row(&LedgerEntry::new("pay", "", "O-3", None)).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_given_by_hand_is_the_one_that_the_handler_finds() {
    let table = Table::default();
    let house = house(&table);
    let token = issue(&house, of_order("O-2")).await;
    assert_eq!(house.pay(&token, "O-2", 1).await.status, 504);
    let operations = Operations::new(house.memory.clone());
    let found = operations.list(Cursor::START, 10).await.unwrap().operations.remove(0);
    let by_hand = Settle::done(Answer::text("by hand"), "the bank says so");
    operations
        .settle(&found, by_hand.in_ledger(table.clone(), of("O-2", "by hand")))
        .await
        .unwrap();
    assert_eq!(house.pay(&token, "O-2", 1).await.text(), "by hand");
    // The store forgets it, and whoever asks is given another token.
    house.memory.forget(&found.key).await;
    let token = issue(&house, of_order("O-2")).await;
    assert_eq!(house.pay(&token, "O-2", 1).await.text(), "by hand");
}

#[tokio::test(start_paused = true)]
async fn a_free_token_has_a_row_under_its_name_alone() {
    let table = Table::default();
    let house = House::with(free().ledger(table.clone()), |request: Asked| {
        let operation = operation(&request);
        assert_eq!(operation.delivery_id(), None);
        std::future::ready(respond(200, Full::new(Bytes::from(operation.key().to_owned()))))
    });
    let token = issue(&house, asked()).await;
    let name = house.call(bringing(&token.to_text(), "{}")).await.text().to_owned();
    assert!(table.row(&LedgerEntry::new("pay", "", name, None)).is_some());
}
