//! What is to be sent, and what came of it: passed within the process, or as lines between two.

use std::{fmt, str::FromStr, time::Duration};

use crate::{
    app,
    cell::{REPLAYED, Workload},
};

/// More than anybody asks of one order, and few enough to be built ahead.
const AT_MOST: u64 = 1_000_000;

/// So many requests, from this number on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What is sent.
    pub workload: Workload,
    /// Keys of another run are other keys.
    pub run: u32,
    /// The number of the first request.
    pub from: u64,
    /// How many.
    pub count: u64,
}

impl Order {
    /// The key of each request; `None` for one that has none.
    pub fn keys(self) -> impl Iterator<Item = Option<String>> {
        (self.from..self.from + self.count).map(move |number| match self.workload {
            Workload::PassThrough => None,
            Workload::First => Some(app::key(self.run, number)),
            Workload::Replay => Some(app::key(self.run, number % REPLAYED)),
        })
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, run, from, count } = self;
        write!(f, "{workload} {run} {from} {count}")
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || format!("`{line}` is no order");
        let words: Vec<_> = line.split_whitespace().collect();
        let [workload, run, from, count] = words[..] else { return Err(wrong()) };
        let workload = Workload::ALL.into_iter().find(|known| known.to_string() == workload);
        let order = Self {
            workload: workload.ok_or_else(wrong)?,
            run: run.parse().map_err(|_| wrong())?,
            from: from.parse().map_err(|_| wrong())?,
            count: count.parse().map_err(|_| wrong())?,
        };
        match order.count <= AT_MOST && order.from.checked_add(order.count).is_some() {
            true => Ok(order),
            false => Err(wrong()),
        }
    }
}

/// What the answers were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// With the status that they should have.
    pub good: u64,
    /// That say that they are replays.
    pub replays: u64,
    /// In bodies.
    pub bytes: u64,
    /// From the first request to the last answer.
    pub wall: Duration,
}

impl Told {
    /// Adds one answer.
    pub fn add(&mut self, good: bool, replay: bool, bytes: usize) {
        self.good += u64::from(good);
        self.replays += u64::from(replay);
        self.bytes += bytes as u64;
    }

    /// Adds what others were told, whose time is not added to that of all.
    pub fn join(&mut self, others: Self) {
        self.good += others.good;
        self.replays += others.replays;
        self.bytes += others.bytes;
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { good, replays, bytes, wall } = self;
        write!(f, "{good} {replays} {bytes} {}", wall.as_nanos())
    }
}

impl FromStr for Told {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        match numbers.as_deref() {
            Ok([good, replays, bytes, wall]) => Ok(Self {
                good: *good,
                replays: *replays,
                bytes: *bytes,
                wall: Duration::from_nanos(*wall),
            }),
            _ => Err(format!("`{line}` does not say what came of an order")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_what_came_of_them_are_read_as_they_were_written() {
        for workload in Workload::ALL {
            let order = Order { workload, run: 7, from: 64, count: 3 };
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        let told = Told { good: 3, replays: 2, bytes: 600, wall: Duration::from_nanos(12_345) };
        assert_eq!(told.to_string().parse(), Ok(told));
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let orders = ["", "first", "first 1 2", "first 1 2 3 4", "last 1 2 3", "first 1 2 -3"];
        let beyond = ["first 1 2 1000001", "first 1 18446744073709551615 1"];
        for line in orders.into_iter().chain(beyond) {
            assert!(line.parse::<Order>().is_err(), "{line}");
        }
        for line in ["", "1 2 3", "1 2 3 4 5", "1 2 x 4"] {
            assert!(line.parse::<Told>().is_err(), "{line}");
        }
    }
}
