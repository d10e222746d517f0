//! What must be true of the books and of what the senders heard, whatever was killed and lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    sender::{End, Heard},
    site::Books,
};

/// What is not as it must be.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    /// Orders that were charged more than once.
    pub(crate) charged_twice: Vec<String>,
    /// Orders whose acknowledged answers differ, or say something else than the books.
    pub(crate) contradicted: Vec<String>,
    /// Whatever else: balances, notifications that were never acknowledged, answers of no shop.
    pub(crate) other: Vec<String>,
}

impl Wrong {
    pub(crate) fn is_nothing(&self) -> bool {
        self.charged_twice.is_empty() && self.contradicted.is_empty() && self.other.is_empty()
    }
}

/// Compares what was heard with the books. Every order must have been heard of.
pub(crate) fn judge(books: &Books, heard: &[Heard]) -> Wrong {
    let mut wrong = Wrong { other: books.wrong_balances(), ..Wrong::default() };
    let mut answers: BTreeMap<&str, BTreeSet<(u16, &str, &str)>> = BTreeMap::new();
    for Heard { order, id, end } in heard {
        match end {
            End::Acknowledged { status, content_type, text } => {
                answers.entry(order).or_default().insert((*status, content_type, text));
            }
            End::Never(last) => wrong.other.push(format!("{id} was never acknowledged: {last}")),
            End::Unexpected(said) => wrong.other.push(format!("{id} was told {said}")),
        }
    }
    for (order, charged) in &books.orders {
        let charges = books.of(order);
        if charges.len() as i64 != *charged {
            wrong.other.push(format!("{order} says {charged} charges and has {}", charges.len()));
        }
        if charges.len() > 1 {
            wrong.charged_twice.push(order.clone());
        }
        let answers = answers.remove(order.as_str()).unwrap_or_default();
        let paid: Vec<_> = charges.iter().map(|charge| charge.id.as_str()).collect();
        let told: Vec<_> = answers.iter().collect();
        let agree = match told[..] {
            [(200, _, text)] => {
                let said: Vec<_> = text.split(' ').collect();
                said[0] == "paid" && paid == said[1..2]
            }
            [(402, _, text)] => text.starts_with("refused ") && paid.is_empty(),
            _ => false,
        };
        if !agree {
            wrong.contradicted.push(format!("{order}: told {told:?}, charged {paid:?}"));
        }
    }
    if books.rows != books.orders.len() {
        wrong.other.push(format!("{} orders have {} rows", books.orders.len(), books.rows));
    }
    wrong.other.extend(answers.keys().map(|order| format!("nobody knows the order {order}")));
    wrong
}
