//! A server that answers TIME, and refuses it in scripts, as some rented servers do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::redis_server::{RedisServer, run};

/// A server whose TIME has another name, which only the proxies before it know.
pub(crate) struct TimelessServer {
    server: RedisServer,
    port: u16,
    /// Where the proxies run, whatever the runtime of a test does.
    runtime: Option<Runtime>,
}

/// Which way of a TIME takes longer than the other, so that its reader takes its time for another one than it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Detour {
    pub(crate) of_request: Duration,
    pub(crate) of_reply: Duration,
}

const RENAMED: [&str; 3] = ["--rename-command", "TIME", "REALTIME"];

/// How a client sends TIME, and how it is sent on.
const TIME: &[u8] = b"*1\r\n$4\r\nTIME\r\n";
const REALTIME: &[u8] = b"*1\r\n$8\r\nREALTIME\r\n";

impl TimelessServer {
    pub(crate) fn start() -> Self {
        Self::before(RedisServer::start_with(&RENAMED))
    }

    /// One node with all slots, as ElastiCache Serverless shows itself.
    pub(crate) fn start_cluster() -> Self {
        let timeless = Self::before(RedisServer::start_cluster_with(&RENAMED));
        let port = timeless.port.to_string();
        let announce = ["CONFIG", "SET", "cluster-announce-port", &port];
        run(&mut timeless.server.connect(), &announce);
        timeless
    }

    fn before(server: RedisServer) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let port = proxy(&runtime, server.port(), Detour::default());
        let runtime = Some(runtime);
        Self {
            server,
            port,
            runtime,
        }
    }

    /// The server itself, whose TIME has another name.
    pub(crate) fn server(&self) -> &RedisServer {
        &self.server
    }

    pub(crate) fn kill(&mut self) {
        self.server.kill();
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The URL of another way to the server.
    pub(crate) fn url_with(&self, detour: Detour) -> String {
        let runtime = self.runtime.as_ref().expect("it runs until it is dropped");
        let port = proxy(runtime, self.server.port(), detour);
        format!("redis://127.0.0.1:{port}")
    }
}

impl Drop for TimelessServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns the port of a proxy before another one.
fn proxy(runtime: &Runtime, target: u16, detour: Detour) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    runtime.spawn(async move {
        let listener = TcpListener::from_std(listener).expect("a socket");
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(carry(client, target, detour));
        }
    });
    port
}

async fn carry(client: TcpStream, target: u16, detour: Detour) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else {
        return;
    };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let ((client_in, client_out), (server_in, server_out)) =
        (client.into_split(), server.into_split());
    let is_asked = AtomicBool::new(false);
    tokio::select! {
        () = requests(client_in, server_out, detour, &is_asked) => {}
        () = replies(server_in, client_out, detour, &is_asked) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    detour: Detour,
    is_asked: &AtomicBool,
) {
    let mut bytes = vec![0; 64 * 1_024];
    let mut waiting = Vec::new();
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        waiting.extend_from_slice(&bytes[..length]);
        while let Some(at) = find(&waiting, TIME) {
            tokio::time::sleep(detour.of_request).await;
            is_asked.store(true, Ordering::SeqCst);
            let sent = [&waiting[..at], REALTIME].concat();
            waiting.drain(..at + TIME.len());
            if to.write_all(&sent).await.is_err() {
                return;
            }
        }
        // The beginning of a TIME, whose rest is under way.
        let kept = (1..TIME.len()).rev();
        let kept = kept
            .into_iter()
            .find(|kept| waiting.ends_with(&TIME[..*kept]));
        let sent: Vec<u8> = waiting.drain(..waiting.len() - kept.unwrap_or(0)).collect();
        if to.write_all(&sent).await.is_err() {
            return;
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    detour: Detour,
    is_asked: &AtomicBool,
) {
    let mut bytes = vec![0; 64 * 1_024];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if is_asked.swap(false, Ordering::SeqCst) {
            tokio::time::sleep(detour.of_reply).await;
        }
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|part| part == wanted)
}
