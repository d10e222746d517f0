//! What was measured, as tables in Markdown.

use std::fmt::Write;

use crate::{
    cell::{Cell, Store, Variant, Way, Workload},
    measure::Sample,
    spread::Spread,
};

/// The samples of the cells of one table, round by round.
#[derive(Debug)]
pub struct Table {
    cells: Vec<Cell>,
    /// By cell, then by round.
    samples: Vec<Vec<Sample>>,
}

impl Table {
    /// A table without rounds.
    pub fn new(cells: Vec<Cell>) -> Self {
        let samples = vec![Vec::new(); cells.len()];
        Self { cells, samples }
    }

    /// The cells, in their order.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Adds a round's sample of the cell at this place.
    pub fn add(&mut self, place: usize, sample: Sample) {
        self.samples[place].push(sample);
    }

    /// The table as text.
    pub fn text(&self, tasks: usize) -> String {
        let Cell { way, store, workload, .. } = self.cells[0];
        let at_once = match (way, store) {
            (Way::Served, _) => format!("served on {tasks} connections"),
            (Way::Called, Store::Redis) => format!("{tasks} at once"),
            (Way::Called, Store::Memory) => "1 at once".to_owned(),
        };
        let mut out = format!("### {workload}, {store}, {at_once}\n\n");
        let redis = store == Store::Redis && workload != Workload::PassThrough;
        out.push_str(
            "| variant | CPU us | over bare us | x bare | over bare, x minimum | wall us |",
        );
        out.push_str(if redis { " Redis CPU us | commands | reads |\n" } else { "\n" });
        out.push_str("|---|--:|--:|--:|--:|--:|");
        out.push_str(if redis { "--:|--:|--:|\n" } else { "\n" });
        for place in 0..self.cells.len() {
            self.row(&mut out, place, redis);
        }
        out
    }

    fn row(&self, out: &mut String, place: usize, redis: bool) {
        let rounds = &self.samples[place];
        let cpu = Spread::of(rounds.iter().map(|sample| sample.cpu_us));
        let wall = Spread::of(rounds.iter().map(|sample| sample.wall_us));
        let over = Spread::of(self.over_bare(place));
        let (bare, minimum) = (self.place(Variant::Bare), self.place(Variant::Minimum));
        let pairs = || rounds.iter().zip(&self.samples[bare]);
        let times = Spread::of(pairs().map(|(sample, bare)| sample.cpu_us / bare.cpu_us));
        let over_floor: Vec<_> = self.over_bare(place).zip(self.over_bare(minimum)).collect();
        // What passes through costs the minimum a look for its field, which is no measure.
        let passes = self.cells[place].workload == Workload::PassThrough;
        let of_minimum = match place == bare || passes {
            true => None,
            false => Spread::of_ratio(&over_floor),
        };
        let of_minimum = of_minimum.map_or("-".to_owned(), |spread| spread.text(2));
        let variant = self.cells[place].variant;
        let row = format!(
            "| {variant} | {} | {} | {} | {of_minimum} | {:.2} |",
            cpu.text(2),
            over.text(2),
            times.text(2),
            wall.median
        );
        out.push_str(&row);
        if redis {
            let of = |value: fn(&Sample) -> Option<f64>| {
                Spread::of(rounds.iter().filter_map(value)).median
            };
            let _ = write!(
                out,
                " {:.1} | {:.2} | {:.2} |",
                of(|sample| Some(sample.redis?.cpu_us)),
                of(|sample| Some(sample.redis?.commands)),
                of(|sample| Some(sample.redis?.reads)),
            );
        }
        out.push('\n');
    }

    /// Round by round what a cell takes more than the bare app.
    fn over_bare(&self, place: usize) -> impl Iterator<Item = f64> {
        let bare = &self.samples[self.place(Variant::Bare)];
        self.samples[place].iter().zip(bare).map(|(sample, bare)| sample.cpu_us - bare.cpu_us)
    }

    fn place(&self, variant: Variant) -> usize {
        let place = self.cells.iter().position(|cell| cell.variant == variant);
        place.expect("every table has every variant")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_us: f64) -> Sample {
        Sample { cpu_us, wall_us: cpu_us, redis: None }
    }

    fn row(workload: Workload, minimum: f64) -> String {
        let mut table = Table::new(Cell::table(Way::Called, Store::Memory, workload));
        // The second round is twice as slow for everybody, which no ratio shows.
        for slow in [1.0, 2.0] {
            for (place, cpu) in [10.0, 11.0, 10.0 + minimum, 14.0, 15.0, 14.0].iter().enumerate() {
                table.add(place, sample(cpu * slow));
            }
        }
        let text = table.text(1);
        text.lines().find(|line| line.contains("| layer |")).expect("it has every variant").into()
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_not_where_the_minimum_costs_nothing() {
        let dear = row(Workload::First, 2.0);
        assert!(dear.contains("| 1.40 (1.40..1.40) | 2.00 (2.00..2.00) |"), "{dear}");
        let free = row(Workload::First, 0.1);
        assert!(free.contains("| 1.40 (1.40..1.40) | - |"), "{free}");
        let passing = row(Workload::PassThrough, 2.0);
        assert!(passing.contains("| 1.40 (1.40..1.40) | - |"), "{passing}");
    }
}
