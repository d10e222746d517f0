//! What many rounds say together: medians, and how far they are to be trusted.

/// Below this, in microseconds, "over bare axum" is noise, and so is a ratio to it.
const TELLS_NOTHING: f64 = 0.3;

/// How often rounds are drawn anew to see how far a ratio of medians moves.
const DRAWS: usize = 1_000;

/// A median, and the smallest and largest.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Half of the values are above it.
    pub median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    /// Of these values; all NaN if there is none.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        match (values.first(), values.last()) {
            (Some(&least), Some(&most)) => Self { median: middle(&values), least, most },
            _ => Self { median: f64::NAN, least: f64::NAN, most: f64::NAN },
        }
    }

    /// How many times the median of the first of each pair is that of the second; as least and most,
    /// where 95 in 100 of this figure are when as many rounds are drawn out of these, with repetitions.
    ///
    /// Not the median of the rounds' own ratios: in a round that disturbed what the second was compared
    /// with, the second comes near zero or below, and the ratio is anything.
    ///
    /// `None` where the second is not surely above what noise is.
    pub fn of_ratio(pairs: &[(f64, f64)]) -> Option<Self> {
        let median = ratio(pairs.iter().copied())?;
        let mut chance = Chance(0);
        let mut drawn = Vec::with_capacity(DRAWS);
        let mut nothing = 0;
        for _ in 0..DRAWS {
            let draw = (0..pairs.len()).map(|_| pairs[chance.below(pairs.len())]);
            match ratio(draw) {
                Some(ratio) => drawn.push(ratio),
                None => nothing += 1,
            }
        }
        let outside = DRAWS / 40;
        if nothing > outside {
            return None;
        }
        drawn.sort_by(f64::total_cmp);
        let (least, most) = (drawn[outside], drawn[drawn.len() - 1 - outside]);
        Some(Self { median, least, most })
    }

    /// `median (least..most)`.
    pub fn text(self, digits: usize) -> String {
        let Self { median, least, most } = self;
        format!("{median:.digits$} ({least:.digits$}..{most:.digits$})")
    }
}

/// `None` where the second median is noise.
fn ratio(pairs: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (mut firsts, mut seconds): (Vec<f64>, Vec<f64>) = pairs.unzip();
    if firsts.is_empty() {
        return None;
    }
    firsts.sort_by(f64::total_cmp);
    seconds.sort_by(f64::total_cmp);
    let floor = middle(&seconds);
    (floor >= TELLS_NOTHING).then(|| middle(&firsts) / floor)
}

/// Of sorted values, of which there is one at least.
fn middle(values: &[f64]) -> f64 {
    let upper = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[upper - 1], values[upper]),
        _ => values[upper],
    }
}

/// The same sequence in every run (SplitMix64), so that the same rounds give the same figures.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0].into_iter()).text(1), "2.0 (1.0..3.0)");
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0].into_iter()).text(1), "2.5 (1.0..4.0)");
        assert!(Spread::of([].into_iter()).median.is_nan());
    }

    #[test]
    fn a_round_in_which_the_minimum_seems_to_cost_nothing_does_not_spoil_the_ratio() {
        let mut pairs: Vec<_> = (0..25).map(|round| (8.0, 2.0 + f64::from(round % 5))).collect();
        assert_eq!(Spread::of_ratio(&pairs).unwrap().median, 2.0);
        // Ratios of rounds would be 800 and -40 here.
        pairs[0] = (8.0, 0.01);
        pairs[1] = (8.0, -0.2);
        let ratio = Spread::of_ratio(&pairs).unwrap();
        assert_eq!(ratio.median, 2.0);
        assert!(ratio.least >= 1.3 && ratio.most <= 4.0, "{ratio:?}");
    }

    #[test]
    fn there_is_no_ratio_to_what_may_be_nothing() {
        assert!(Spread::of_ratio(&[]).is_none());
        assert!(Spread::of_ratio(&[(8.0, 0.1); 25]).is_none());
        assert!(Spread::of_ratio(&[(8.0, -2.0); 25]).is_none());
        // The median says 1, and two fifths of the rounds say that it is nothing.
        let rounds = (0..25).map(|round| (8.0, if round % 5 < 2 { 0.0 } else { 1.0 }));
        assert!(Spread::of_ratio(&rounds.collect::<Vec<_>>()).is_none());
    }
}
