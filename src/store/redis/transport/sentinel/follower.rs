//! Follows the master: by the events of all sentinels, and by asking them every second.
//!
//! An event alone changes nothing. After it, its sentinel is asked, and a majority decides; a
//! replica that is being promoted is asked for its role.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time;

use super::super::dial::{OnLost, Server, Task};
use super::client::{Address, Event, QUERY_TIMEOUT, SentinelClient, Vote};
use super::master;
use super::voters::Voters;
use crate::store::redis::real_time;

/// How often the sentinels are asked for the master, beside their events. A master that was
/// replaced on purpose, or while it hung, believes for ten more seconds that it is the master.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The backoff before a replica that is being promoted is asked again for its role.
const PROMOTION_BACKOFF: Duration = Duration::from_millis(10);

/// The time that a replica has to become the master after the command of the sentinel.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a promoted replica is taken for the master although the sentinels name another
/// one: they see the promotion up to a second later. If they do not, the failover has failed.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Follows the master of one runtime. Stops on drop.
pub(super) struct MasterFollower {
    named: watch::Receiver<NamedMaster>,
    #[expect(dead_code, reason = "held for its Drop")]
    task: Task,
}

/// The master that the sentinels name, or will name.
#[derive(Debug, Default)]
pub(super) struct NamedMaster {
    /// The last one that a majority named.
    elected: Option<Address>,
    /// A replica that a sentinel has promoted, until a majority names it.
    promoted: Option<Promotion>,
    /// The sentinels that answered when they were asked last.
    answering: Vec<Arc<Server>>,
}

#[derive(Debug)]
struct Promotion {
    address: Address,
    until: Instant,
}

/// A report of a task to the follower.
enum Report {
    /// The answer of one sentinel, if it gave one.
    Vote(usize, Option<Vote>),
    /// A sentinel has sent a replica the command to take over from a master.
    Promoting { replica: Address, master: Address },
    /// The replica says that it is the master.
    Promoted(Address),
}

impl MasterFollower {
    /// Starts to follow on the current runtime.
    pub(super) fn start(sentinels: &[Arc<Server>], service: &Arc<str>, master: Server) -> Self {
        let (sender, named) = watch::channel(NamedMaster::default());
        let (reports, received) = mpsc::channel(sentinels.len().max(1));
        let (service, votes) = (Arc::clone(service), reports.clone());
        let ask = move |number, sentinel: &_| {
            let client = SentinelClient::new(sentinel, &service);
            tokio::spawn(report(client, number, votes.clone())).abort_handle()
        };
        let voters = Voters::start(sentinels, Box::new(ask));
        let following = follow(voters, master, sender, reports, received);
        let task = Task(tokio::spawn(following).abort_handle());
        Self { named, task }
    }

    /// Returns a view of the master that is named. Its present state counts as seen.
    pub(super) fn named(&self) -> watch::Receiver<NamedMaster> {
        let mut named = self.named.clone();
        named.mark_unchanged();
        named
    }
}

async fn follow(
    mut voters: Voters,
    settings: Server,
    named: watch::Sender<NamedMaster>,
    reports: mpsc::Sender<Report>,
    mut received: mpsc::Receiver<Report>,
) {
    // Aborted when this task is.
    let mut tasks = JoinSet::new();
    while let Some(report) = received.recv().await {
        match report {
            Report::Vote(number, vote) => {
                voters.record(number, vote);
                named.send_if_modified(|named| {
                    named.answering = voters.answering();
                    named.elect(voters.elected())
                });
            }
            Report::Promoting { replica, master } => {
                let elected = named.borrow().elected.clone();
                // Otherwise it is an event of a failover that is over.
                if elected.is_none_or(|elected| elected == master) {
                    tasks.spawn(confirm(replica, settings.clone(), reports.clone()));
                }
            }
            Report::Promoted(address) => named.send_modify(|named| named.promote(address)),
        }
        // Keeps no results of confirmations.
        while tasks.try_join_next().is_some() {}
    }
}

/// Reports the master that one sentinel names: now, after each event, and every second.
async fn report(mut client: SentinelClient, number: usize, reports: mpsc::Sender<Report>) {
    loop {
        let asked = async {
            client.subscribe().await?;
            client.vote().await
        };
        let answer = real_time::timeout(QUERY_TIMEOUT, asked).await;
        let vote = answer.and_then(Result::ok);
        let sent = reports.send(Report::Vote(number, vote)).await;
        let event = time::timeout(POLL_INTERVAL, client.next_event()).await;
        if let Ok(Event::Promoting { replica, master }) = event {
            let promoting = Report::Promoting { replica, master };
            // Fails with the follower, as the next vote does.
            let _ = reports.send(promoting).await;
        }
        if sent.is_err() {
            return;
        }
    }
}

/// Asks a replica for its role until it is the master.
async fn confirm(replica: Address, settings: Server, reports: mpsc::Sender<Report>) {
    let promoted = async {
        while master::connect(&settings, &replica, Arc::new(|| ()))
            .await
            .is_err()
        {
            real_time::sleep(PROMOTION_BACKOFF).await;
        }
    };
    let promoted = real_time::timeout(PROMOTION_TIMEOUT, promoted).await;
    if promoted.is_some() {
        // Fails if the follower has ended.
        let _ = reports.send(Report::Promoted(replica)).await;
    }
}

impl NamedMaster {
    /// Records the vote of a majority. Returns whether another master is named now.
    fn elect(&mut self, elected: Option<&Address>) -> bool {
        let is_new = elected.is_some() && self.elected.as_ref() != elected;
        if is_new {
            self.elected = elected.cloned();
        }
        let is_over = |promoted: &mut Promotion| {
            elected == Some(&promoted.address) || promoted.until <= Instant::now()
        };
        let has_ended = self.promoted.take_if(is_over).is_some();
        is_new || has_ended
    }

    fn promote(&mut self, address: Address) {
        self.promoted = Some(Promotion {
            address,
            until: Instant::now() + AGREEMENT_TIMEOUT,
        });
    }

    /// The replica that was promoted, if the sentinels do not name it yet.
    pub(super) fn promoted(&self) -> Option<&Address> {
        let promoted = self.promoted.as_ref()?;
        (Instant::now() < promoted.until).then_some(&promoted.address)
    }

    pub(super) fn answering(&self) -> &[Arc<Server>] {
        &self.answering
    }

    fn master(&self) -> Option<&Address> {
        self.promoted().or(self.elected.as_ref())
    }
}

/// Calls `on_change` once another master than this one is named. What was named before does not count: the connection to
/// the master is newer.
pub(super) fn watch_master(
    mut named: watch::Receiver<NamedMaster>,
    master: Address,
    on_change: OnLost,
) -> Task {
    let watching = tokio::spawn(async move {
        // Ends with the follower, at the end of the store.
        while named.changed().await.is_ok() {
            let named = named.borrow_and_update();
            if named.master().is_some_and(|named| *named != master) {
                return on_change();
            }
        }
    });
    Task(watching.abort_handle())
}
