//! A relay to a server that a test can block, redirect or move to a distance.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// A port that leads to another one. Lives as long as the runtime.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: AtomicU16,
    /// The microseconds that each byte takes from one end to the other.
    delay: AtomicU64,
    accepted: AtomicUsize,
    /// Of each connection, whether it is blocked.
    blocked: Mutex<Vec<watch::Sender<bool>>>,
}

impl Relay {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            target: AtomicU16::new(port),
            delay: AtomicU64::new(0),
            accepted: AtomicUsize::new(0),
            blocked: Mutex::default(),
        });
        tokio::spawn(Arc::clone(&shared).accept(listener));
        Self { address, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Adds this to each round trip from now on.
    pub(crate) fn set_round_trip(&self, round_trip: Duration) {
        let micros = round_trip.as_micros() / 2;
        let micros = micros.try_into().expect("a short time");
        self.shared.delay.store(micros, Ordering::Relaxed);
    }

    /// Has connections that come lead to another port.
    pub(crate) fn lead_to(&self, port: u16) {
        self.shared.target.store(port, Ordering::Relaxed);
    }

    /// Has nothing pass any more over the connections that are there, which stay open.
    pub(crate) fn block(&self) {
        for blocked in &*self.shared.blocked.lock().unwrap() {
            blocked.send_replace(true);
        }
    }

    /// The same for one of them, in the order in which they came.
    pub(crate) fn block_only(&self, number: usize) {
        self.shared.blocked.lock().unwrap()[number].send_replace(true);
    }

    /// How many connections have come.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        while let Ok((client, _)) = listener.accept().await {
            self.accepted.fetch_add(1, Ordering::Relaxed);
            let (sender, blocked) = watch::channel(false);
            self.blocked.lock().unwrap().push(sender);
            let target = self.target.load(Ordering::Relaxed);
            tokio::spawn(Arc::clone(&self).relay(client, target, blocked));
        }
    }

    async fn relay(
        self: Arc<Self>,
        client: TcpStream,
        target: u16,
        mut blocked: watch::Receiver<bool>,
    ) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else {
            return;
        };
        let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
        let blocked = async { blocked.wait_for(|blocked| *blocked).await.is_ok() };
        let (mut client, mut server) = (client.into_split(), server.into_split());
        let requests = self.carry(&mut client.0, &mut server.1);
        let replies = self.carry(&mut server.0, &mut client.1);
        tokio::select! {
            ((), ()) = async { tokio::join!(requests, replies) } => return,
            _ = blocked => {}
        }
        // Both stay open.
        std::future::pending::<()>().await;
    }

    /// Carries what is read from one end to the other, until the first end is closed.
    async fn carry(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) {
        let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        let read = async move {
            let mut bytes = vec![0; 64 * 1_024];
            while let Ok(length @ 1..) = from.read(&mut bytes).await {
                let delay = Duration::from_micros(self.delay.load(Ordering::Relaxed));
                let _ = sender.send((Instant::now() + delay, bytes[..length].to_vec()));
            }
        };
        let write = async move {
            while let Some((due, bytes)) = receiver.recv().await {
                if due > Instant::now() {
                    tokio::time::sleep_until(due).await;
                }
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            let _ = to.shutdown().await;
        };
        tokio::join!(read, write);
    }
}
