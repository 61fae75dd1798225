//! The output of the programs that the README runs.

use std::process::Command;
use std::sync::LazyLock;

use crate::markdown::Block;
use crate::support::example::{Example, built};
use crate::support::redis_server::{RedisServer, run};

/// The address of the example by default.
const ADDRESS: &str = "127.0.0.1:3000";

/// Returns the first command that the example `axum` prints, and the output of that command.
pub(super) fn axum() -> (String, String) {
    static OUTPUT: LazyLock<(String, String)> = LazyLock::new(|| {
        let mut example = Example::start("axum", "memory:");
        let listening = example.line();
        let address = listening.strip_prefix("Listening on ").expect(&listening);
        let (address, _) = address.split_once(". Try").expect(&listening);
        let command = example.line().trim().to_owned();
        let output = Command::new("sh").args(["-c", &command]).output();
        let output = String::from_utf8(output.expect("sh runs").stdout).expect("text");
        (command.replace(address, ADDRESS) + "\n", at_once(&output))
    });
    OUTPUT.clone()
}

/// Removes the date, and makes times what they are at the time of the README if no time passes between the requests.
fn at_once(answer: &str) -> String {
    let lines = answer.lines().map(str::trim_end);
    let lines = lines.filter(|line| !line.starts_with("date: "));
    let lines = lines.map(|line| match line.split_once(": ") {
        Some((name @ "retry-after", _)) => format!("{name}: 10\n"),
        Some((name @ "x-ratelimit-reset", _)) => format!("{name}: 1795305610\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Returns some lines of the doctor about a Redis that may evict keys, cut to a width.
pub(super) fn doctor(block: &Block) -> String {
    let server = RedisServer::start();
    let policy = ["CONFIG", "SET", "maxmemory-policy", "volatile-lru"];
    run(&mut server.connect(), &policy);
    let diagnose = || {
        let doctor = Command::new(built("tollgate-doctor"))
            .arg(server.url())
            .output();
        let output = String::from_utf8(doctor.expect("the doctor runs").stdout).expect("text");
        short(&output)
    };
    // On a busy machine the server may be slow once.
    let mut runs = (0..5).map(|_| diagnose());
    runs.find(|output| super::shape(output) == super::shape(&block.text))
        .unwrap_or_else(diagnose)
}

/// The longest line in the README.
const WIDTH: usize = 96;

/// The lines in the README. `->` is the remedy of the line before.
const SHOWN: [&str; 5] = ["server", "script", "eviction", "->", "round trip"];

fn short(output: &str) -> String {
    let shown = output.lines().filter(|line| {
        let rest = line.trim_start_matches("ok").trim_start_matches("warning");
        SHOWN.iter().any(|name| rest.trim_start().starts_with(name))
    });
    let short = shown.map(|line| {
        let short: String = line.chars().take(WIDTH).collect();
        let cut = if short.len() < line.len() { "…" } else { "" };
        format!("{}{cut}\n", short.trim_end())
    });
    short.collect()
}
