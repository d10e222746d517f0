//! Where the figures come from: the machine, the versions, and who else was at work.

use std::{fs, process::Command, time::Duration};

/// The header of a report.
pub fn describe(redis: &str) -> String {
    let versions = ["axum", "tokio", "redis", "hyper-util", "bytes", "http"]
        .map(|name| format!("{name} {}", version_of(name)));
    let cores = cores();
    let build =
        if cfg!(debug_assertions) { "debug build: the figures say nothing" } else { "release" };
    format!(
        "Machine:  {cores} cores, {}, {} {}\nVersions: {}, {redis}, {} ({build})\nLoad:     {}",
        processor().unwrap_or_else(|| "unknown processor".to_owned()),
        std::env::consts::OS,
        std::env::consts::ARCH,
        rustc(),
        versions.join(", "),
        fs::read_to_string("/proc/loadavg").unwrap_or_else(|_| "unknown".to_owned()).trim(),
    )
}

/// The CPU time that all processes of this machine have used so far; `None` where it cannot be told.
pub fn busy() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|t| t.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal: in hundredths of a second.
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|place| ticks.get(*place)).sum();
    Some(Duration::from_millis(busy * 10))
}

/// All of the machine's, also when this process may use one of them only.
fn cores() -> usize {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match info.lines().filter(|line| line.starts_with("processor\t")).count() {
        0 => std::thread::available_parallelism().map_or(0, usize::from),
        cores => cores,
    }
}

fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = info.lines().find(|line| line.starts_with("model name"))?;
    Some(model.split_once(':')?.1.trim().to_owned())
}

fn rustc() -> String {
    let output = Command::new("rustc").arg("--version").output().ok();
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or_else(|| "rustc unknown".to_owned(), |text| text.trim().to_owned())
}

/// The version that was built.
fn version_of(package: &str) -> &'static str {
    let lock = include_str!("../../Cargo.lock");
    let entry = lock.split_once(&format!("name = \"{package}\"\nversion = \""));
    entry.and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown")
}
