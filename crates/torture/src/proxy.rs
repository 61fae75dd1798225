//! A proxy between a contestant and its server, which cuts connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::contestant::Failure;
use crate::history::{Action, Outcome, Recorder};
use crate::lock::lock;
use crate::random::Random;

/// A proxy on a free port of this machine. It accepts nobody where it is dropped, and connections end with the server.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// One in so many requests, and one in so many replies, is lost with its connection. 0 for none.
    one_in: AtomicU64,
    is_over: AtomicBool,
    random: Mutex<Random>,
    recorder: Arc<Recorder>,
}

impl Shared {
    fn cuts(&self) -> bool {
        let one_in = self.one_in.load(Ordering::Relaxed);
        let mut random = lock(&self.random);
        one_in > 0 && random.one_in(one_in)
    }
}

impl Proxy {
    /// Starts a proxy to a port of this machine. It records each cut.
    pub(crate) fn start(port: u16, seed: u64, recorder: Arc<Recorder>) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let shared = Arc::new(Shared {
            one_in: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            random: Mutex::new(Random::new(seed, 77)),
            recorder,
        });
        let address = listener.local_addr()?;
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.is_over.load(Ordering::Relaxed) {
                    return;
                }
                // The server may be down: then the client is closed.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)) {
                    let _ = join(&accepting, &client, &server);
                }
            }
        });
        Ok(Self { address, shared })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Loses one in so many requests and replies from now on, each with its connection. 0 for none.
    pub(crate) fn cut_one_in(&self, one_in: u64) {
        self.shared.one_in.store(one_in, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Ends the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) -> Result<(), Failure> {
    for (from, to) in [(client, server), (server, client)] {
        from.set_nodelay(true)?;
        let from = from.try_clone()?;
        let to = to.try_clone()?;
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let is_cut = copy(&shared, &from, &to).unwrap_or(false);
            // Nobody knows of the cut before it starts, and nothing passes after its end.
            let mut cut = shared.recorder.event(0, "server", Action::Fault);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            if is_cut {
                shared.recorder.end(&mut cut, Outcome::Done);
                shared.recorder.keep(cut);
            }
        });
    }
    Ok(())
}

/// Copies until the connection ends. Returns whether it has to be cut.
fn copy(shared: &Shared, mut from: &TcpStream, mut to: &TcpStream) -> std::io::Result<bool> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(false);
        }
        if shared.cuts() {
            return Ok(true);
        }
        to.write_all(buffer.get(..length).unwrap_or_default())?;
    }
}
