//! Runs a contestant in a separate process, so that contestants share no allocator and no runtime.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use crate::args::Serve;
use crate::contestants;
use crate::workload::Workload;

/// The child's side: serves until its parent is gone.
#[tokio::main]
pub(crate) async fn serve(serve: &Serve) {
    let workload = Workload::named(&serve.workload).expect("the parent knows it");
    let router = contestants::router(&serve.name, &workload, &serve.redis).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a free port");
    println!("{}", listener.local_addr().expect("an address").port());
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).await.expect("it serves");
}

/// The parent's side.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(name: &str, workload: &Workload, redis: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut process = Command::new(program)
            .args(["--serve", name, workload.name, redis])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let stdout = process.stdout.take().expect("it is piped");
        let mut port = String::new();
        let read = BufReader::new(stdout).read_line(&mut port);
        read.expect("the child says where it listens");
        let port = port.trim().parse();
        Self {
            process,
            port: port.unwrap_or_else(|_| panic!("{name} does not start")),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
