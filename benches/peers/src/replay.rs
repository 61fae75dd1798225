//! Records a call of tollgate from Redis's MONITOR, so that a plain EVALSHA with the same bytes can be
//! measured.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use redis::Cmd;

use crate::support::redis_server::RedisServer;

/// The last EVALSHA that a client sends while `work` runs.
pub(crate) async fn capture(server: &RedisServer, work: impl Future<Output = ()>) -> Cmd {
    const END: &str = "the end of what is captured";
    let mut lines = monitor(server);
    work.await;
    redis::cmd("ECHO")
        .arg(END)
        .exec(&mut server.connect())
        .expect("ECHO answers");
    let mut call = None;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line of MONITOR");
        let words = words(&line);
        if words.iter().any(|word| word == END.as_bytes()) {
            break;
        }
        if words
            .first()
            .is_some_and(|name| name.eq_ignore_ascii_case(b"EVALSHA"))
        {
            call = Some(words);
        }
    }
    let call = call.expect("the work calls a script by its hash");
    let mut command = Cmd::new();
    for word in call {
        command.arg(word);
    }
    command
}

fn monitor(server: &RedisServer) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", server.port()));
    let mut stream = stream.expect("the server accepts");
    let patience = Some(Duration::from_secs(10));
    stream.set_read_timeout(patience).expect("a socket");
    stream.write_all(b"MONITOR\r\n").expect("a connection");
    let mut lines = BufReader::new(stream);
    let mut ok = String::new();
    lines.read_line(&mut ok).expect("MONITOR answers");
    assert_eq!(ok, "+OK\r\n");
    lines
}

/// The words in quotes of a line: `+1700000000.000000 [0 127.0.0.1:1] "EVALSHA" "…"`. Commands that a
/// script runs, `[0 lua]`, have none.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    if line.contains(" lua] ") {
        return words;
    }
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'"' {
            words.push(word(&mut bytes));
        }
    }
    words
}

/// Up to the closing quote, as Redis escapes it.
fn word(bytes: &mut impl Iterator<Item = u8>) -> Vec<u8> {
    let mut word = Vec::new();
    loop {
        match bytes.next().expect("a closing quote") {
            b'"' => return word,
            b'\\' => word.push(escaped(bytes)),
            byte => word.push(byte),
        }
    }
}

fn escaped(bytes: &mut impl Iterator<Item = u8>) -> u8 {
    let mut next = || bytes.next().expect("an escaped byte");
    match next() {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'a' => 7,
        b'b' => 8,
        b'x' => {
            let digits = [next(), next()];
            let digits = std::str::from_utf8(&digits).expect("hexadecimal digits");
            u8::from_str_radix(digits, 16).expect("hexadecimal digits")
        }
        byte => byte,
    }
}
