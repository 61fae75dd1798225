//! A relay to a server that a test can block or redirect.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A port that leads to another one. Lives as long as the runtime.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: AtomicU16,
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
            accepted: AtomicUsize::new(0),
            blocked: Mutex::default(),
        });
        tokio::spawn(Arc::clone(&shared).accept(listener));
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
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
            tokio::spawn(relay(client, target, blocked));
        }
    }
}

async fn relay(mut client: TcpStream, target: u16, mut blocked: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else {
        return;
    };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let blocked = async { blocked.wait_for(|blocked| *blocked).await.is_ok() };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        _ = blocked => {}
    }
    // Both stay open.
    std::future::pending::<()>().await;
}
