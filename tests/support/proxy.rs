//! A proxy between a store and its server that can disturb the connection.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// It carries everything.
    Whole,
    /// Delays each reply.
    Slow(Duration),
    /// Carries nothing in the first time of each new connection, as during a handshake with a server far away.
    SlowStart(Duration),
    /// Every n-th reply is lost after the server has received the request: both ends are closed instead.
    CutBeforeReply(u64),
    /// Like `CutBeforeReply`, but passes on this many bytes of the reply.
    Truncate { every: u64, bytes: usize },
    /// Stops reading existing connections at both ends without closing them. New connections work.
    HoleForOld,
    /// The same for all connections.
    Hole,
    /// Half-closes the connection: the store reads its end, and can still write.
    HalfClosed,
    /// Alters the hash tags of keys, so that the server sees none, and no script that it could run.
    WithoutHashTags,
    /// To whatever is asked, this is answered.
    Answers(&'static [u8]),
}

/// A port that leads to another.
pub(crate) struct Proxy {
    port: u16,
    wire: watch::Sender<Wire>,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    target: u16,
    /// How many connections there have been.
    connections: AtomicU64,
    /// Those up to this number are in the hole, if there is one.
    old: AtomicU64,
    replies: AtomicU64,
    cuts: AtomicU64,
    cuts_next: AtomicBool,
}

impl Proxy {
    pub(crate) async fn before(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let wire = watch::Sender::new(Wire::Whole);
        let shared = Arc::new(Shared {
            target,
            connections: AtomicU64::new(0),
            old: AtomicU64::new(0),
            replies: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            cuts_next: AtomicBool::new(false),
        });
        let (watched, of_all) = (wire.subscribe(), Arc::clone(&shared));
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, watched.clone(), Arc::clone(&of_all)));
            }
        });
        Self {
            port,
            wire,
            shared,
            accepting,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn set(&self, wire: Wire) {
        let so_far = self.shared.connections.load(Ordering::SeqCst);
        self.shared.old.store(so_far, Ordering::SeqCst);
        self.wire.send_replace(wire);
    }

    /// Closes both ends in place of the reply to the next call of a script, once. The server has got the call.
    pub(crate) fn cut_next_reply(&self) {
        self.shared.cuts_next.store(true, Ordering::SeqCst);
    }

    /// How many replies the server has sent.
    pub(crate) fn replies(&self) -> u64 {
        self.shared.replies.load(Ordering::Relaxed)
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The wire, as one connection sees it.
#[derive(Clone)]
struct View {
    number: u64,
    wire: watch::Receiver<Wire>,
    shared: Arc<Shared>,
}

impl View {
    /// What the wire does, when it is no hole.
    async fn now(&mut self) -> Wire {
        let (number, shared) = (self.number, &self.shared);
        let is_open = |wire: &Wire| match wire {
            Wire::Hole => false,
            Wire::HoleForOld => number > shared.old.load(Ordering::SeqCst),
            _ => true,
        };
        let open = self.wire.wait_for(is_open).await;
        // Without a proxy, nothing is on the wire any more.
        open.map_or(Wire::Answers(b""), |wire| *wire)
    }
}

async fn carry(near: TcpStream, wire: watch::Receiver<Wire>, shared: Arc<Shared>) {
    let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
    let mut view = View {
        number,
        wire,
        shared,
    };
    let _ = near.set_nodelay(true);
    if let Wire::Answers(text) = view.now().await {
        return answer(near, text).await;
    }
    if let Wire::SlowStart(delay) = view.now().await {
        tokio::time::sleep(delay).await;
    }
    let shared = Arc::clone(&view.shared);
    let Ok(far) = TcpStream::connect(("127.0.0.1", shared.target)).await else {
        return;
    };
    let _ = far.set_nodelay(true);
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let cuts_next = AtomicBool::new(false);
    let requests = requests(near_in, far_out, view.clone(), &cuts_next);
    let replies = replies(far_in, near_out, view, &shared, &cuts_next);
    // Where one way ends, so does the other: both ends are closed.
    tokio::select! {
        () = requests => {}
        () = replies => {}
    }
}

/// The command whose reply [`Proxy::cut_next_reply`] cuts.
const CALL: &[u8] = b"EVALSHA";

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut view: View,
    cuts_next: &AtomicBool,
) {
    let mut bytes = vec![0; 64 * 1_024];
    loop {
        let _ = view.now().await;
        tokio::select! {
            changed = view.wire.changed() => if changed.is_err() { return },
            read = from.read(&mut bytes) => match read {
                Ok(length) if length > 0 => {
                    if *view.wire.borrow() == Wire::WithoutHashTags {
                        let tags = bytes[..length].iter_mut().filter(|byte| **byte == b'{');
                        tags.for_each(|byte| *byte = b'(');
                    }
                    if to.write_all(&bytes[..length]).await.is_err() {
                        return;
                    }
                    // Not the reply to what the store asks in the background, such as for the slots.
                    let mut parts = bytes[..length].windows(CALL.len());
                    if parts.any(|part| part == CALL)
                        && view.shared.cuts_next.swap(false, Ordering::SeqCst)
                    {
                        cuts_next.store(true, Ordering::SeqCst);
                    }
                }
                _ => return,
            }
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut view: View,
    shared: &Shared,
    cuts_next: &AtomicBool,
) {
    let mut bytes = vec![0; 64 * 1_024];
    loop {
        match view.now().await {
            Wire::HalfClosed => {
                let _ = to.shutdown().await;
                return std::future::pending().await;
            }
            Wire::Answers(_) => return,
            _ => {}
        }
        let length = tokio::select! {
            changed = view.wire.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = from.read(&mut bytes) => match read {
                Ok(length) if length > 0 => length,
                _ => return,
            }
        };
        let nth = shared.replies.fetch_add(1, Ordering::Relaxed) + 1;
        let passed = match view.now().await {
            _ if cuts_next.swap(false, Ordering::SeqCst) => 0,
            Wire::CutBeforeReply(every) if nth.is_multiple_of(every) => 0,
            Wire::Truncate { every, bytes } if nth.is_multiple_of(every) => bytes.min(length),
            Wire::Slow(delay) => {
                tokio::time::sleep(delay).await;
                length
            }
            _ => length,
        };
        let written = to.write_all(&bytes[..passed]).await;
        if passed < length {
            shared.cuts.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if written.is_err() {
            return;
        }
    }
}

/// Says the same whatever is asked.
async fn answer(mut near: TcpStream, text: &[u8]) {
    let mut asked = [0; 4_096];
    while let Ok(length) = near.read(&mut asked).await {
        if length == 0 || near.write_all(text).await.is_err() {
            return;
        }
    }
}
