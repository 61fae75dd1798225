//! A client of an HTTP server on this machine.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Keep-alive connections with at most one request in flight each.
pub(crate) struct HttpClient(Mutex<Vec<TcpStream>>);

impl HttpClient {
    pub(crate) async fn connect(port: u16, connections: usize) -> Self {
        let mut idle = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect(("127.0.0.1", port)).await;
            let stream = stream.expect("the server accepts");
            stream.set_nodelay(true).expect("a socket");
            idle.push(stream);
        }
        Self(Mutex::new(idle))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request with these headers, each of which ends with a line break. Whether the answer is 200 with
    /// the body `ok`.
    pub(crate) async fn get(&self, headers: &str) -> bool {
        let taken = self.idle().pop();
        let mut stream = taken.expect("a connection for each task");
        let request = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        let written = stream.write_all(request.as_bytes()).await;
        written.expect("a connection");
        let mut response = [0; 4_096];
        let mut filled = 0;
        // The body of any other response is longer.
        while !response[..filled].ends_with(b"\r\n\r\nok") {
            let read = stream.read(&mut response[filled..]).await;
            let read = read.expect("a connection");
            let text = String::from_utf8_lossy(&response[..filled]);
            assert!(read > 0, "the server answered: {text}");
            filled += read;
            if response[..filled].ends_with(b"\n") {
                return false;
            }
        }
        self.idle().push(stream);
        response.starts_with(b"HTTP/1.1 200 ")
    }
}
