use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::time;

use super::*;
use crate::store::redis::connection::Connector;
use crate::store::redis::test_server::RedisServer;

/// Sends a command, and does not wait for its reply.
async fn send_and_give_up(acquired: &AcquiredServer) {
    let command = redis::cmd("PING");
    let mut sent = pin!(acquired.send(&command));
    std::future::poll_fn(|context| {
        assert!(sent.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn commands_that_are_given_up_early_do_not_suspend_a_connection_that_answers() {
    let server = RedisServer::start();
    let deadline = Duration::from_secs(1);
    let connection = Arc::new(ReconnectingConnection::new(
        Arc::new(Connector::to_server(&server.url())),
        Handle::current(),
    ));
    let acquired = connection.acquire(deadline).await.unwrap();
    let has_changed = connection.watch_state();
    for _ in 0..3 {
        send_and_give_up(&acquired).await;
        // Longer than half of the deadline: without an answer, the connection would be silent
        // by now.
        time::sleep(deadline * 6 / 10).await;
    }
    assert!(!has_changed());
}
