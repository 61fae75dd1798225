//! A server at a distance: a port that passes everything on after half a round trip.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// A port that leads to a server of this machine. Lives as long as the process.
///
/// It has threads, because the timers of tokio are as coarse as the distance.
pub(crate) struct Distance {
    port: u16,
    /// Until then, nothing passes.
    cut_until: Arc<Mutex<Option<Instant>>>,
}

impl Distance {
    pub(crate) fn to(server: u16, round_trip: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let cut_until = Arc::default();
        let cut = Arc::clone(&cut_until);
        spawn(move || {
            for near in listener.incoming() {
                let near = near.expect("a connection");
                // The server may have ended, and its client may not know it yet.
                let Ok(far) = TcpStream::connect(("127.0.0.1", server)) else {
                    continue;
                };
                let twin = |stream: &TcpStream| stream.try_clone().expect("a handle");
                carry(twin(&near), twin(&far), round_trip / 2, Arc::clone(&cut));
                carry(far, near, round_trip / 2, Arc::clone(&cut));
            }
        });
        Self { port, cut_until }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Lets nothing pass for a time. Connections on which something was sent meanwhile are closed then.
    pub(crate) fn cut_for(&self, time: Duration) {
        *self.cut_until.lock().expect("a time") = Some(Instant::now() + time);
    }
}

/// Carries bytes from one end to the other, until the first end is closed.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    delay: Duration,
    cut_until: Arc<Mutex<Option<Instant>>>,
) {
    to.set_nodelay(true).expect("a socket");
    let (sender, receiver) = channel::<(Instant, Vec<u8>)>();
    spawn(move || {
        let mut bytes = vec![0; 64 * 1_024];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let due = Instant::now() + delay;
            if sender.send((due, bytes[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    spawn(move || {
        for (due, bytes) in receiver {
            sleep(due.saturating_duration_since(Instant::now()));
            let end_of_cut = *cut_until.lock().expect("a time");
            let cut_for = end_of_cut.map(|end| end.saturating_duration_since(Instant::now()));
            if let Some(left) = cut_for.filter(|left| !left.is_zero()) {
                sleep(left);
                break;
            }
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        // The other end may have closed it.
        let _ = to.shutdown(Shutdown::Both);
    });
}
