//! The figures as a person reads them, and what they must be.

use std::fmt;

use crate::{
    scenes::{Cell, Scene},
    scheme::Scheme,
};

/// What came of one scene.
pub(crate) struct Row {
    pub(crate) scene: Scene,
    /// One for each scheme.
    pub(crate) cells: Vec<Cell>,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.heard { "" } else { "*" };
        match self.charges {
            0 => f.pad(&format!("never{star}")),
            1 => f.pad(&format!("once{star}")),
            times => f.pad(&format!("{times} times{star}")),
        }
    }
}

/// The names of the columns.
pub(crate) fn head() -> String {
    let names = line("", Scheme::ALL.map(Scheme::name).iter());
    format!("{names}\n{}", "-".repeat(names.len() + 4))
}

/// How often each scheme charged once, and how often it held.
pub(crate) fn sums(rows: &[Row]) -> String {
    let sum = |name, counts: fn(&Cell) -> bool| {
        let of = |scheme| rows.iter().filter(|row| counts(&row.cells[scheme])).count();
        let sums = (0..Scheme::ALL.len()).map(|scheme| format!("{} of {}", of(scheme), rows.len()));
        line(name, sums)
    };
    let once = sum("charged once", |cell| cell.charges == 1);
    let held = sum("held: charged once, and heard", |cell| cell.charges == 1 && cell.heard);
    format!("{once}\n{held}")
}

impl Row {
    /// What is wrong with the figures, if anything is.
    pub(crate) fn check(&self) -> Option<String> {
        let must_be = Scheme::ALL.map(|scheme| must_be(self.scene, scheme));
        (self.cells != must_be)
            .then(|| format!("wrong figures: {self}\nit must be:    {}", line("", must_be.iter())))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&line(self.scene.name(), self.cells.iter()))
    }
}

fn line(name: &str, cells: impl Iterator<Item = impl fmt::Display>) -> String {
    let cells: String = cells.map(|cell| format!("  {:<12}", cell.to_string())).collect();
    format!("{name:<41}{}", cells).trim_end().to_owned()
}

/// What each scheme can and cannot do.
fn must_be(scene: Scene, scheme: Scheme) -> Cell {
    let heard = |charges| Cell { charges, heard: true };
    let unheard = |charges| Cell { charges, heard: false };
    match (scheme, scene) {
        (Scheme::TableAndStates | Scheme::Outside, _) => heard(1),
        (
            Scheme::Nothing,
            Scene::OneAfterAnother | Scene::AtOnce | Scene::NewIds | Scene::Flushed,
        ) => heard(5),
        // Nothing had happened.
        (Scheme::Nothing | Scheme::States, Scene::KilledBeforeCommit) => heard(1),
        (Scheme::Nothing, Scene::KilledAfterCommit | Scene::EverythingAtOnce) => heard(2),
        (Scheme::Token, Scene::OneAfterAnother | Scene::AtOnce) => heard(1),
        (Scheme::Token, Scene::NewIds) => heard(5),
        (Scheme::Token, Scene::Flushed | Scene::EverythingAtOnce) => heard(2),
        // Nobody knows, and nobody is asked: it is refused.
        (Scheme::Token, Scene::KilledBeforeCommit) => unheard(0),
        (Scheme::Token, Scene::KilledAfterCommit) => unheard(1),
        (Scheme::Table, Scene::NewIds) => heard(5),
        (Scheme::Table, Scene::EverythingAtOnce) => heard(2),
        (Scheme::Table, _) => heard(1),
        // `already_done` is not what the gateway waits for.
        (Scheme::States, _) => unheard(1),
    }
}
