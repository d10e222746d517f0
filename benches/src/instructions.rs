//! Instructions a request, counted by callgrind: exact where CPU time is noisy.

use std::process::Command;

use crate::cell::{Cell, Store, Way, Workload};

/// Few enough that callgrind is done soon, and enough for what happens once in a while.
const REQUESTS: u64 = 2_000;

/// The instructions that one request of each cell in memory takes, as a table.
///
/// # Errors
///
/// When there is no valgrind, or it does not say what is expected of it.
pub fn table() -> Result<String, String> {
    let mut out = String::from("| in memory | instructions | over bare | over body-type |\n");
    out.push_str("|---|--:|--:|--:|\n");
    for workload in Workload::ALL {
        let mut first_two = Vec::new();
        for cell in Cell::table(Way::Called, Store::Memory, workload) {
            let each = per_request(cell)?;
            first_two.push(each);
            let over = |place: usize| each - first_two.get(place).copied().unwrap_or(each);
            let Cell { workload, variant, .. } = cell;
            out.push_str(&format!(
                "| {workload}, {variant} | {each} | {:+} | {:+} |\n",
                over(0),
                over(1)
            ));
        }
    }
    Ok(out)
}

/// The difference of two runs, so that starting up and warming up are not counted.
fn per_request(cell: Cell) -> Result<i64, String> {
    let few = run(cell, REQUESTS / 10)?;
    let many = run(cell, REQUESTS)?;
    let requests = (REQUESTS - REQUESTS / 10) as i64;
    Ok((many - few) / requests)
}

fn run(cell: Cell, requests: u64) -> Result<i64, String> {
    let this =
        std::env::current_exe().map_err(|error| format!("no path of this bench: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(this)
        .args(["--cell", &cell.to_string(), "--requests", &requests.to_string()])
        .output()
        .map_err(|error| format!("cannot run valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    match collected.and_then(|(_, count)| count.trim().parse().ok()) {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(format!("valgrind ended with {}:\n{text}", output.status)),
    }
}
