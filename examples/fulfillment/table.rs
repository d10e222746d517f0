//! The figures as a person reads them, and what they must be.

use std::fmt;

use crate::gateway::{DELIVERIES, Manner, Tally};

/// What came of one notification.
pub(crate) struct Row {
    pub(crate) protected: bool,
    pub(crate) manner: Manner,
    pub(crate) tally: Tally,
    pub(crate) charges: usize,
    pub(crate) yuan: u64,
}

/// The names of the columns.
pub(crate) fn head() -> String {
    let names = line(["layer", "delivered", "requests", "charges", "yuan charged", "answers"]);
    format!("{names}\n{}", "-".repeat(names.len() + 15))
}

impl Row {
    /// What is wrong with the figures, if anything is.
    pub(crate) fn check(&self, price: u64) -> Option<String> {
        let times = if self.protected { 1 } else { DELIVERIES };
        let must_be = (times, price * times as u64, DELIVERIES);
        let is = (self.charges, self.yuan, self.tally.delivered);
        let say = |(charges, yuan, answered)| {
            format!("charges: {charges}, yuan: {yuan}, deliveries answered `success`: {answered}")
        };
        (is != must_be).then(|| {
            format!("wrong figures: {self}\n  {}; it must be\n  {}", say(is), say(must_be))
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = self.tally.answers.iter().rev().map(|(answer, n)| format!("{n} x {answer}"));
        f.write_str(&line([
            if self.protected { "with" } else { "without" },
            match self.manner {
                Manner::NewIds => "new notifyId, same order",
                Manner::OneAfterAnother => "one after another",
                Manner::AtOnce => "all at once",
            },
            &self.tally.requests.to_string(),
            &self.charges.to_string(),
            &self.yuan.to_string(),
            &answers.collect::<Vec<_>>().join(", "),
        ]))
    }
}

fn line([layer, delivered, requests, charges, yuan, answers]: [&str; 6]) -> String {
    format!("{layer:<7}  {delivered:<24}  {requests:>8}  {charges:>7}  {yuan:>12}  {answers}")
}
