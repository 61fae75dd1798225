//! Asks a port whether it speaks TLS, after a handshake that failed or is slow.
//!
//! A server without TLS does not answer a TLS handshake, and a server with TLS resets a connection without it.
//! Neither tells the two apart from a server that hangs, so the port is asked over a connection of its own.
//! Nothing secret is sent.

use std::io;
use std::time::Duration;

use redis::{ConnectionAddr, RedisError};
use tokio::net::TcpStream;

use crate::store::redis::real_time;

/// The limit on one probe.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// The limit on waiting for what a server says unasked. It says so as soon as it has accepted a connection.
const UNASKED_TIMEOUT: Duration = Duration::from_millis(30);

/// A `ClientHello` of TLS 1.2 without extensions. A TLS server answers it with a handshake or an alert.
const CLIENT_HELLO: [u8; 52] = [
    22, 3, 1, 0, 47, // A handshake record of 47 bytes,
    1, 0, 0, 43, 3, 3, // a ClientHello of 43 bytes for TLS 1.2,
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, // the random bytes,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, //
    0,  // no session,
    0, 4, 0xc0, 0x2f, 0xc0, 0x2b, // ECDHE with AES 128 for RSA and ECDSA,
    1, 0, // no compression.
];

/// The record types of an alert and of a handshake, then the major version of SSL 3.0 and all TLS.
const TLS_REPLIES: [[u8; 2]; 2] = [[21, 3], [22, 3]];

/// Whether the port answers as TLS servers do.
pub(super) async fn speaks_tls(addr: &ConnectionAddr) -> bool {
    let reply = first_reply(addr, &CLIENT_HELLO).await;
    reply.is_some_and(|reply| TLS_REPLIES.iter().any(|begin| reply.starts_with(begin)))
}

/// Whether the port answers as Redis without TLS does.
pub(super) async fn speaks_plain_redis(addr: &ConnectionAddr) -> bool {
    let reply = first_reply(addr, b"PING\r\n").await;
    // The error that a password is required is an answer, too.
    reply.is_some_and(|reply| {
        reply.starts_with(b"+PONG")
            || matches!(reply.as_slice(), [b'-', code, ..] if code.is_ascii_uppercase())
    })
}

/// Returns the error with which the port refuses clients before they send anything, as a server at `maxclients` or in
/// protected mode does. It then hangs up, and a client that writes first may lose the error.
pub(super) async fn unasked_error(addr: &ConnectionAddr) -> Option<RedisError> {
    let ConnectionAddr::Tcp(host, port) = addr else {
        return None;
    };
    let said = async {
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        let said = real_time::timeout(UNASKED_TIMEOUT, read(&stream)).await;
        said.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    };
    let said = real_time::timeout(PROBE_TIMEOUT, said).await?.ok()?;
    let line = said.split(|byte| *byte == b'\r').next()?;
    let reply = redis::parse_redis_value(&[line, b"\r\n"].concat()).ok()?;
    reply.extract_error().err()
}

/// Returns the first bytes that a port replies to a greeting.
async fn first_reply(addr: &ConnectionAddr, greeting: &[u8]) -> Option<Vec<u8>> {
    let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = addr else {
        return None;
    };
    let reply = real_time::timeout(PROBE_TIMEOUT, exchange(host, *port, greeting)).await;
    reply?.ok()
}

async fn exchange(host: &str, port: u16, greeting: &[u8]) -> io::Result<Vec<u8>> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.writable().await?;
    // The empty buffer of a new connection takes it whole.
    stream.try_write(greeting)?;
    read(&stream).await
}

/// Reads the first bytes that a server sends.
async fn read(stream: &TcpStream) -> io::Result<Vec<u8>> {
    loop {
        stream.readable().await?;
        let mut reply = vec![0; 1_024];
        match stream.try_read(&mut reply) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => {
                reply.truncate(outcome?);
                return Ok(reply);
            }
        }
    }
}
