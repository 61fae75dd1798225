//! The load: keep-alive connections with one request in flight each. Reads every response to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::latencies::Latencies;
use crate::workload::Workload;

/// The answers of a span, by what they are.
pub(crate) struct Answers {
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    /// Neither the handler's answer nor a 429.
    pub(crate) other: u64,
    pub(crate) latencies: Latencies,
    pub(crate) elapsed: Duration,
}

impl Answers {
    pub(crate) fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    fn new() -> Self {
        Self {
            admitted: 0,
            refused: 0,
            other: 0,
            latencies: Latencies::new(),
            elapsed: Duration::ZERO,
        }
    }

    fn add(&mut self, others: &Self) {
        self.admitted += others.admitted;
        self.refused += others.refused;
        self.other += others.other;
        self.latencies.add(&others.latencies);
    }
}

pub(crate) struct Client {
    port: u16,
    connections: usize,
    requests: Vec<Vec<u8>>,
    next: AtomicUsize,
}

impl Client {
    pub(crate) fn new(port: u16, workload: &Workload, connections: usize) -> Arc<Self> {
        let request = |number| {
            let key = Workload::key(number);
            format!("GET / HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n").into_bytes()
        };
        Arc::new(Self {
            port,
            connections,
            requests: (0..workload.keys).map(request).collect(),
            next: AtomicUsize::new(0),
        })
    }

    /// On one thread: it leaves the rest of the machine to the server.
    pub(crate) fn run(self: &Arc<Self>, span: Duration) -> Answers {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let mut connections = Vec::new();
            for _ in 0..self.connections {
                connections.push(Connection::open(self.port).await);
            }
            let begin = Instant::now();
            let mut tasks = JoinSet::new();
            for connection in connections {
                tasks.spawn(Arc::clone(self).ask(connection, begin + span));
            }
            let mut answers = Answers::new();
            for of_connection in tasks.join_all().await {
                answers.add(&of_connection);
            }
            answers.elapsed = begin.elapsed();
            answers
        })
    }

    async fn ask(self: Arc<Self>, mut connection: Connection, end: Instant) -> Answers {
        let mut answers = Answers::new();
        loop {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let request = &self.requests[turn % self.requests.len()];
            let asked = Instant::now();
            let answer = connection.ask(request).await;
            let answered = Instant::now();
            answers.latencies.record(answered - asked);
            match answer {
                (200, b"ok") => answers.admitted += 1,
                (429, _) => answers.refused += 1,
                _ => answers.other += 1,
            }
            if answered >= end {
                return answers;
            }
        }
    }
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await;
        let stream = stream.expect("the server accepts");
        stream.set_nodelay(true).expect("a socket");
        Self {
            stream,
            buffer: vec![0; 16 * 1_024],
        }
    }

    /// The status and the body.
    async fn ask(&mut self, request: &[u8]) -> (u16, &[u8]) {
        self.stream.write_all(request).await.expect("a connection");
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await;
            let read = read.expect("a connection");
            assert!(read > 0, "the server closed, or answered more than 16 KiB");
            filled += read;
            if let Some((status, body)) = parse(&self.buffer[..filled])
                && body.end <= filled
            {
                assert_eq!(body.end, filled, "more than one answer to one request");
                return (status, &self.buffer[body]);
            }
        }
    }
}

/// The status of an answer and where its body is, once its head is there.
fn parse(answer: &[u8]) -> Option<(u16, std::ops::Range<usize>)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let parsed = head.parse(answer).expect("an answer of HTTP/1.1");
    let httparse::Status::Complete(begin) = parsed else {
        return None;
    };
    let length = head.headers.iter().find_map(|header| {
        let found = header.name.eq_ignore_ascii_case("content-length");
        found.then(|| {
            std::str::from_utf8(header.value)
                .ok()?
                .parse::<usize>()
                .ok()
        })?
    });
    let length = length.expect("the length of the body");
    Some((head.code.expect("a status"), begin..begin + length))
}
