//! The client whose server drops answers.

use super::{run, text};

#[tokio::test]
async fn a_server_that_drops_answers_charges_a_client_with_a_key_once() {
    let output = run("client", &[]).await;
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    let mut rows = said.lines().skip(4).map(|line| {
        let cells: Vec<_> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        let [client, requests, charges, hears] = cells[..] else { panic!("{said}") };
        (client, requests, charges, hears)
    });
    let Some(("sends once", "1", "1", error)) = rows.next() else { panic!("{said}") };
    assert!(error.starts_with("error: "), "{said}");
    assert_eq!(rows.next(), Some(("sends again", "3", "3", "charge 3")), "{said}");
    let with_key = Some(("sends again, with ClientLayer", "3", "1", "charge 1"));
    assert_eq!((rows.next(), rows.next()), (with_key, None), "{said}");
}
