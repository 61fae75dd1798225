//! A proxy that loses a reply of the server, or sends one twice.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What happens to a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyFault {
    /// It is lost.
    Swallow,
    /// A copy of an earlier reply comes before it.
    Stray,
    /// This comes before it.
    Insert(&'static [u8]),
    /// This comes in its place.
    Replace(&'static [u8]),
}

/// How many replies are kept for a stray one.
const KEPT: usize = 4;

/// A port that leads to another.
pub(crate) struct ReplyProxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    target: u16,
    plan: Mutex<FaultPlan>,
    connections: AtomicU64,
    faults: AtomicU64,
}

#[derive(Default)]
struct FaultPlan {
    /// Each so many replies, this happens.
    each: Option<(u64, ReplyFault)>,
    /// These happen to the next ones.
    next: VecDeque<ReplyFault>,
    replies: u64,
    earlier: VecDeque<Vec<u8>>,
}

impl ReplyProxy {
    pub(crate) async fn before(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            target,
            plan: Mutex::default(),
            connections: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let of_all = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                of_all.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(carry(near, Arc::clone(&of_all)));
            }
        });
        Self {
            port,
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

    /// From now on, this happens to each so many replies, not counting those of a handshake.
    pub(crate) fn each(&self, replies: u64, fault: ReplyFault) {
        self.shared.plan.lock().unwrap().each = Some((replies, fault));
    }

    /// Happens once, to the next reply that has no fault yet.
    pub(crate) fn next(&self, fault: ReplyFault) {
        self.shared.plan.lock().unwrap().next.push_back(fault);
    }

    /// Nothing happens any more.
    pub(crate) fn stop(&self) {
        self.shared.plan.lock().unwrap().each = None;
    }

    /// How many replies had a fault.
    pub(crate) fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::Relaxed)
    }

    /// How many replies have passed, not counting those of handshakes.
    pub(crate) fn replies(&self) -> u64 {
        self.shared.plan.lock().unwrap().replies
    }

    /// How many connections have come.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for ReplyProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl FaultPlan {
    /// Writes a reply of the server, or what comes in its place. Returns whether it had a fault.
    fn pass(&mut self, reply: &[u8], out: &mut Vec<u8>) -> bool {
        // Handshakes reply with maps, states and errors, scripts with the others.
        if !matches!(reply.first(), Some(b'$' | b':' | b'*')) && self.next.is_empty() {
            out.extend_from_slice(reply);
            return false;
        }
        self.replies += 1;
        let is_due = |(each, _): &(u64, ReplyFault)| self.replies.is_multiple_of(*each);
        let of_many = self.each.filter(is_due).map(|(_, fault)| fault);
        let stray = self.earlier.front().cloned();
        let fault = self.next.pop_front().or(of_many);
        let is_faulty = match (fault, stray) {
            (Some(ReplyFault::Swallow), _) => return true,
            (Some(ReplyFault::Replace(other)), _) => {
                out.extend_from_slice(other);
                return true;
            }
            (Some(ReplyFault::Insert(other)), _) => {
                out.extend_from_slice(other);
                true
            }
            (Some(ReplyFault::Stray), Some(stray)) => {
                out.extend_from_slice(&stray);
                true
            }
            _ => false,
        };
        out.extend_from_slice(reply);
        self.earlier.push_back(reply.to_vec());
        if self.earlier.len() > KEPT {
            self.earlier.pop_front();
        }
        is_faulty
    }
}

async fn carry(near: TcpStream, shared: Arc<Shared>) {
    let Ok(far) = TcpStream::connect(("127.0.0.1", shared.target)).await else {
        return;
    };
    let (_, _) = (near.set_nodelay(true), far.set_nodelay(true));
    let ((mut near_in, near_out), (far_in, mut far_out)) = (near.into_split(), far.into_split());
    // Where one way ends, so does the other: both ends are closed.
    tokio::select! {
        _ = copy(&mut near_in, &mut far_out) => {}
        () = replies(far_in, near_out, &shared) => {}
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let (mut bytes, mut whole) = (Vec::new(), Vec::new());
    while from
        .read_buf(&mut bytes)
        .await
        .is_ok_and(|length| length > 0)
    {
        let mut at = 0;
        while let Some(length) = length_of_reply(&bytes[at..]) {
            let reply = &bytes[at..at + length];
            let is_faulty = shared.plan.lock().unwrap().pass(reply, &mut whole);
            shared.faults.fetch_add(is_faulty.into(), Ordering::Relaxed);
            at += length;
        }
        bytes.drain(..at);
        if to.write_all(&whole).await.is_err() {
            return;
        }
        whole.clear();
    }
}

/// The length of the first reply, if it is whole.
fn length_of_reply(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")?;
    let number = || {
        std::str::from_utf8(&bytes[1..line])
            .ok()?
            .parse::<i64>()
            .ok()
    };
    let end = line + 2;
    let items = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let length = usize::try_from(number()?).ok();
            let end = length.map_or(end, |length| end + length + 2);
            return (end <= bytes.len()).then_some(end);
        }
        b'*' | b'~' | b'>' => number()?.max(0),
        b'%' => 2 * number()?,
        _ => 0,
    };
    let mut end = end;
    for _ in 0..items {
        end += length_of_reply(&bytes[end..])?;
    }
    Some(end)
}
