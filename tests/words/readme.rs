//! The tables and links of README, crate documentation and changelog are those of the crate.

use std::{fs, path::Path};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/operations.md",
    "docs/redis.md",
    "docs/senders.md",
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect(path)
}

/// The features of the manifest, but the empty default.
fn features() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
    let names = features.lines().filter_map(|line| line.split_once(" = ["));
    names.map(|(name, _)| name.to_owned()).filter(|name| name != "default").collect()
}

/// The names in the first column of the table under this heading.
fn table(document: &str, heading: &str) -> Vec<String> {
    let part = document.split(heading).nth(1).expect(heading);
    let rows = part.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.split('|').nth(1).unwrap().trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn every_feature_is_explained_and_no_other() {
    let features = features();
    assert!(features.len() >= 3);
    assert_eq!(table(&read("README.md"), "\n## Features\n"), features);
    let library = read("src/lib.rs").replace("//! ", "").replace("//!", "");
    assert_eq!(table(&library, "\n# Features\n"), features);
}

#[test]
fn the_lowest_rust_version_is_the_manifests() {
    let manifest = read("Cargo.toml");
    let version = manifest.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    for document in ["README.md", "src/lib.rs"] {
        let said = format!("The lowest Rust version is {version}.");
        assert!(read(document).contains(&said), "{document}");
    }
}

#[test]
fn versions_that_must_fit_are_those_of_the_manifests() {
    let required = |manifest: &str, name: &str| {
        let manifest = read(manifest);
        let line = manifest.lines().find(|line| line.starts_with(&format!("{name} = {{ version")));
        line.expect(name).split('"').nth(1).unwrap().to_owned()
    };
    let axum = format!("\naxum = \"{}\"\n", required("Cargo.toml", "axum"));
    assert!(read("README.md").contains(&axum), "{axum}");
    let sqlx = format!("sqlx = {{ version = \"{}\",", required("sqlx/Cargo.toml", "sqlx"));
    for document in ["README.md", "sqlx/README.md"] {
        assert!(read(document).contains(&sqlx), "{document}");
    }
    // A recorder of another version of the facade hears nothing, and nothing says so.
    let facade =
        format!("facade's version that this crate has, {},", required("Cargo.toml", "metrics"));
    assert!(read("docs/operations.md").contains(&facade), "{facade}");
}

/// The row of this problem in the README: its cells for an API and a webhook.
fn refusal(readme: &str, problem: &str) -> (String, String) {
    let name = format!("`{problem}`");
    let rows = readme.split("\n## What a refused request hears\n").nth(1).unwrap();
    let row = rows.lines().find(|row| row.starts_with('|') && row.contains(&name)).expect(problem);
    let cells: Vec<_> = row.split('|').map(str::trim).collect();
    // Where a row has two problems with a status each, they stand in the same order.
    let place = cells[1].split(", ").position(|part| part.starts_with(&name)).unwrap_or(0);
    let nth = |cell: &str| cell.split(", ").nth(place).unwrap_or(cell).to_owned();
    let split = problem.starts_with("token-");
    if split { (nth(cells[2]), nth(cells[3])) } else { (cells[2].into(), cells[3].into()) }
}

#[test]
fn the_readmes_refusals_are_those_of_the_pages() {
    let readme = read("README.md");
    let mut pages = 0;
    for page in fs::read_dir(Path::new(ROOT).join("docs/problems")).unwrap() {
        let path = page.unwrap().path();
        let problem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let page = fs::read_to_string(&path).unwrap();
        let first_number = |text: &str| {
            let digits = |part: &str| part.chars().all(|c| c.is_ascii_digit()) && !part.is_empty();
            text.split(|c: char| !c.is_ascii_digit()).find(|part| digits(part)).map(str::to_owned)
        };
        let status = |who: &str| {
            let row = page.lines().find(|row| row.starts_with(&format!("| {who} |"))).unwrap();
            first_number(row.split('|').nth(2).unwrap())
        };
        let (api, webhook) = refusal(&readme, &problem);
        assert_eq!(first_number(&api), status("API"), "{problem}");
        assert_eq!(first_number(&webhook), status("webhook"), "{problem}");
        pages += 1;
    }
    assert_eq!(pages, 17);
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[test]
fn no_link_leads_nowhere() {
    let mut links = 0;
    for document in DOCUMENTS {
        let folder = Path::new(ROOT).join(document);
        let text = read(document);
        for target in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if target.starts_with("https://") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = folder.parent().unwrap().join(path);
            assert!(path.exists(), "{document}: {target}");
            if !heading.is_empty() {
                let linked = fs::read_to_string(&path).unwrap();
                let mut headings = linked.lines().filter_map(|line| line.strip_prefix("## "));
                assert!(headings.any(|found| anchor(found) == heading), "{document}: {target}");
            }
            links += 1;
        }
    }
    assert!(links >= 8);
}
