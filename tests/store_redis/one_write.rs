//! What the scripts do in the server, as it tells itself: each names its key, touches no other, and writes
//! once, last. So they run on whatever keeps to Redis's rules (one key a script, declared, in one slot), and
//! an error of one means that nothing was written.

use std::collections::BTreeMap;

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use tower_idempotency::test_util::contract;
use tower_idempotency_test_support::RedisServer;

use crate::{contract::Server, support::server_and_store};

/// What a script may ask for; all else changes something.
const READS: [&str; 5] = ["TIME", "GETRANGE", "EXISTS", "PTTL", "INFO"];

/// All scripts there are, by their files' names.
const SCRIPTS: [(&str, &str); 11] = [
    ("bind", include_str!("../../src/store/redis/bind.lua")),
    ("canary", include_str!("../../src/store/redis/canary.lua")),
    ("claim", include_str!("../../src/store/redis/claim.lua")),
    ("claim_quick", include_str!("../../src/store/redis/claim_quick.lua")),
    ("complete", include_str!("../../src/store/redis/complete.lua")),
    ("complete_quick", include_str!("../../src/store/redis/complete_quick.lua")),
    ("issue", include_str!("../../src/store/redis/issue.lua")),
    ("record", include_str!("../../src/store/redis/record.lua")),
    ("release", include_str!("../../src/store/redis/release.lua")),
    ("renew", include_str!("../../src/store/redis/renew.lua")),
    ("resolve", include_str!("../../src/store/redis/resolve.lua")),
];

/// A line of `MONITOR`: whether a script sent it, and its words. Bytes that are no text stay as they are
/// written there, which is enough to compare them.
fn monitored(line: &str) -> Option<(bool, Vec<String>)> {
    let (head, rest) = line.split_once("] ")?;
    let (mut words, mut word, mut inside) = (Vec::new(), String::new(), false);
    let mut letters = rest.trim_end().chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if inside => {
                word.push(letter);
                word.extend(letters.next());
            }
            '"' if inside => words.push(std::mem::take(&mut word)),
            _ if inside => word.push(letter),
            _ => {}
        }
        inside ^= letter == '"';
    }
    Some((head.ends_with(" lua"), words))
}

/// One run of a script: the words that it was sent with, and what it asked the server for.
struct Run {
    sent: Vec<String>,
    asked: Vec<Vec<String>>,
}

/// What the server is sent from now on until it is sent `PING` with this word.
async fn runs_until(mut sent: BufReader<TcpStream>, word: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    loop {
        let mut line = String::new();
        assert!(sent.read_line(&mut line).await.unwrap() > 0, "the server is there");
        let Some((by_script, words)) = monitored(&line) else { continue };
        if by_script {
            runs.last_mut().expect("a script was sent").asked.push(words);
        } else if words[0].starts_with("EVAL") {
            runs.push(Run { sent: words, asked: Vec::new() });
        } else if words.get(1).is_some_and(|first| first == word) {
            return runs;
        }
    }
}

async fn monitor(server: &RedisServer) -> BufReader<TcpStream> {
    let mut stream = BufReader::new(TcpStream::connect(server.address()).await.unwrap());
    stream.write_all(b"MONITOR\r\n").await.unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(line, "+OK\r\n");
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_touches_the_one_key_it_names_and_writes_once_and_last() {
    let (server, store) = server_and_store().await;
    let reading = tokio::spawn(runs_until(monitor(&server).await, "so far"));
    contract::run_all(&store, &Server::of(&server, "idempotency").await).await;
    server.command(&["PING", "so far"]).await;
    let runs = reading.await.unwrap();

    let (mut scripts, mut wrote) = (BTreeMap::<_, usize>::new(), 0);
    for Run { sent, asked } in &runs {
        let [_, script, keys, key, ..] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(keys, "1", "{sent:?}");
        if sent[0] == "EVALSHA" {
            *scripts.entry(script.clone()).or_default() += 1;
        }
        for (nth, words) in asked.iter().enumerate() {
            let is_about_a_key = !["TIME", "INFO"].contains(&&*words[0]);
            assert!(!is_about_a_key || words[1] == *key, "{sent:?} asked for {words:?}");
            if !READS.contains(&&*words[0]) {
                assert_eq!(words[0], "SET");
                assert!(words.iter().any(|word| word == "PX"), "{words:?} expires");
                assert_eq!(nth + 1, asked.len(), "{sent:?} went on after it wrote: {asked:?}");
                wrote += 1;
            }
        }
    }
    // Whatever the suite needs has been run, and did something.
    assert_eq!(scripts.len(), 8, "the seven transitions and the canary: {scripts:?}");
    assert!(runs.len() > 500 && wrote > 200, "{} runs, {wrote} writes", runs.len());
}

/// A script without its comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("--").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// What follows the word `call`, for each call there is.
fn calls(code: &str) -> impl Iterator<Item = &str> {
    code.lines().flat_map(|line| line.split("call(").skip(1))
}

/// What is wrong with a script's text, if anything.
fn wrong_with(text: &str) -> Option<String> {
    let code = code(text);
    // The libraries that not all servers have, and what some of them refuse or read in another way.
    for word in ["cjson", "cmsgpack", "struct.", "bit.", "#!lua", "KEYS[2]", "redis.replicate"] {
        if code.contains(word) {
            return Some(format!("{word} is not there everywhere"));
        }
    }
    // Some servers read the text, and want the key where it is used and not under another name.
    let wrong = calls(&code).find(|call| {
        let about_no_key = ["'TIME')", "redis.call, 'INFO',"];
        !about_no_key.iter().any(|start| call.starts_with(start))
            && !call.split_once("', ").is_some_and(|(_, rest)| rest.starts_with("KEYS[1]"))
    });
    wrong.map(|call| format!("{call}: its key is not KEYS[1] as it stands"))
}

#[test]
fn every_script_keeps_to_what_all_servers_have_and_names_its_key_where_it_uses_it() {
    let mut counted = 0;
    for (name, text) in SCRIPTS {
        assert_eq!(wrong_with(text), None, "{name}");
        counted += calls(&code(text)).count();
    }
    assert!(counted > 15, "{counted}");
    // None is left out.
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".lua").map(str::to_owned))
        .collect();
    files.sort();
    assert_eq!(files, SCRIPTS.map(|(name, _)| name));
    for wrong in [
        "local key = KEYS[1]\nredis.call('GET', key)",
        "redis.call('SET', ARGV[1], 'x')",
        "redis.pcall('DEL', KEYS[1] .. ':x', KEYS[2])",
        "return cjson.encode({})",
    ] {
        assert!(wrong_with(wrong).is_some(), "{wrong}");
    }
    assert_eq!(
        wrong_with("redis.call('TIME') redis.call('GET', KEYS[1]) -- call('GET', key)"),
        None
    );
}
