//! The permits of processes in every order in which callers, messages and their replies can come: no key has two messages
//! under way, no message states another number than is held, and no slot is given twice or lost.
//!
//! A process changes its permits under one lock, so threads add no orders to those of the operations. The test therefore
//! runs on one thread and goes through all orders of operations, as loom does with threads. It uses the public API with a
//! store that decides a message when the test says so: loom would need the table's files without their clock, tasks and
//! store.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tollgate::store::{
    Answers, Check, CircuitBreaker, Holding, Store, StoreFuture, StoreId, StoreParts, Subject,
    TestClock,
};
use tollgate::{Acquired, Error, ErrorKind, Key, MemoryStore, Permit, Quota, Quotas, RateLimiter};

const KEY: &str = "ada";

/// A check of a message.
#[derive(Clone)]
struct Sent {
    limiter: Key,
    key: Key,
    quotas: Quotas,
    cost: u32,
    holding: Holding,
}

impl Sent {
    fn decide(&self, counts: &MemoryStore) -> Answers {
        let check = Subject::new(&self.limiter, &self.key, &self.quotas).check(self.cost);
        let answers = counts.check(&[check.with_holding(&self.holding)]);
        let answers = answers.try_ready().expect("the memory answers at once");
        answers.expect("no error")
    }
}

type Reply = oneshot::Sender<Result<Answers, Error>>;

/// The store of one process. It keeps the message under way until the test decides it, in counts that all processes share.
#[derive(Clone)]
struct Collecting {
    id: StoreId,
    under_way: Arc<Mutex<Vec<(Sent, Reply)>>>,
    /// The permits of the process, and its callers that may have a permit without knowing it yet.
    permits: Arc<AtomicU32>,
    callers: Arc<AtomicU32>,
    circuit_breaker: CircuitBreaker,
}

impl Store for Collecting {
    fn id(&self) -> StoreId {
        self.id
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        let [check] = checks else {
            panic!("{} levels", checks.len());
        };
        let holding = *check.holding.expect("a check of slots");
        let permits = self.permits.load(Ordering::Relaxed);
        let most = permits + self.callers.load(Ordering::Relaxed);
        assert!(
            (permits..=most).contains(&holding.held),
            "{permits} to {most} slots are held, and {holding:?} is stated"
        );
        let mut under_way = self.under_way.lock().unwrap();
        let is_same = |(other, _): &(Sent, Reply)| other.holding.sequence == holding.sequence;
        assert!(under_way.iter().all(is_same), "two messages are under way");
        let (reply, receiver) = oneshot::channel();
        let sent = Sent {
            limiter: check.limiter.clone(),
            key: check.key.clone(),
            quotas: check.quotas.clone(),
            cost: check.cost,
            holding,
        };
        under_way.push((sent, reply));
        StoreFuture::boxed(async move { receiver.await.expect("the test replies") })
    }

    fn parts(&self) -> StoreParts {
        let mut parts = StoreParts::default();
        parts.circuit_breaker = self.circuit_breaker.clone();
        parts
    }
}

/// A process, with a table of permits of its own.
struct Process {
    store: Collecting,
    limiter: RateLimiter,
    /// Messages without a reply, which may arrive later, or never.
    late: Vec<Sent>,
}

impl Process {
    fn new(limit: u32) -> Self {
        let store = Collecting {
            id: StoreId::unique(),
            under_way: Arc::default(),
            permits: Arc::default(),
            callers: Arc::default(),
            circuit_breaker: CircuitBreaker::new().deadline(Duration::from_secs(60)),
        };
        Self {
            limiter: RateLimiter::new(store.clone(), Quota::in_flight(limit)),
            store,
            late: Vec::new(),
        }
    }

    fn has_message(&self) -> bool {
        !self.store.under_way.lock().unwrap().is_empty()
    }

    fn take_message(&self) -> Vec<(Sent, Reply)> {
        std::mem::take(&mut *self.store.under_way.lock().unwrap())
    }

    /// Decides the message, and replies.
    fn decide(&self, counts: &MemoryStore) {
        for (sent, reply) in self.take_message() {
            let _ = reply.send(Ok(sent.decide(counts)));
        }
    }
}

/// Notes that a future can go on.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Permit, Error>>>>;

enum Stage {
    Idle,
    Waiting(Acquiring, Arc<Woken>),
    Held(Permit),
    Over,
}

/// What can happen next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A caller asks for a permit.
    Begin(usize),
    /// A caller that was woken looks for its permit.
    Look(usize),
    /// A caller drops its permit, or gives up.
    End(usize),
    /// The message of a process is decided, and its reply arrives.
    Decide(usize),
    /// The caller of the message learns that there is no reply.
    Fail(usize),
    /// A message without a reply arrives after all.
    Arrive(usize),
}

/// Some processes, their callers, and the counts that they share.
struct World {
    counts: MemoryStore,
    look: RateLimiter,
    limit: u32,
    processes: Vec<Process>,
    /// The process of each caller, and what it does.
    callers: Vec<(usize, Stage)>,
    /// How many messages may fail.
    failures: u32,
    has_failed: bool,
}

impl World {
    fn new(limit: u32, callers: &[usize], failures: u32) -> Self {
        let counts = MemoryStore::with_clock(TestClock::new());
        let processes = callers.iter().max().map_or(0, |last| last + 1);
        Self {
            look: RateLimiter::new(counts.clone(), Quota::in_flight(limit)),
            counts,
            limit,
            processes: (0..processes).map(|_| Process::new(limit)).collect(),
            callers: callers
                .iter()
                .map(|process| (*process, Stage::Idle))
                .collect(),
            failures,
            has_failed: false,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (process, state) in self.processes.iter().enumerate() {
            if state.has_message() {
                steps.push(Step::Decide(process));
                if self.failures > 0 {
                    steps.push(Step::Fail(process));
                }
            }
            if !state.late.is_empty() {
                steps.push(Step::Arrive(process));
            }
        }
        for (caller, (_, stage)) in self.callers.iter().enumerate() {
            match stage {
                Stage::Idle => steps.push(Step::Begin(caller)),
                Stage::Waiting(_, woken) => {
                    if woken.0.load(Ordering::Relaxed) {
                        steps.push(Step::Look(caller));
                    }
                    steps.push(Step::End(caller));
                }
                Stage::Held(_) => steps.push(Step::End(caller)),
                Stage::Over => {}
            }
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Begin(caller) => {
                let (process, stage) = &mut self.callers[caller];
                let process = &self.processes[*process];
                process.store.callers.fetch_add(1, Ordering::Relaxed);
                let limiter = process.limiter.clone();
                let future = Box::pin(async move { limiter.acquire(KEY).await });
                let woken = Arc::new(Woken::default());
                *stage = Stage::Waiting(future, woken);
                self.look_for_permit(caller);
            }
            Step::Look(caller) => self.look_for_permit(caller),
            Step::End(caller) => {
                let (process, stage) = &mut self.callers[caller];
                let store = &self.processes[*process].store;
                match std::mem::replace(stage, Stage::Over) {
                    Stage::Held(permit) => {
                        store.permits.fetch_sub(1, Ordering::Relaxed);
                        drop(permit);
                    }
                    waiting => {
                        store.callers.fetch_sub(1, Ordering::Relaxed);
                        drop(waiting);
                    }
                }
            }
            Step::Decide(process) => self.processes[process].decide(&self.counts),
            Step::Fail(process) => {
                self.failures -= 1;
                self.has_failed = true;
                let process = &mut self.processes[process];
                for (sent, reply) in process.take_message() {
                    let _ = reply.send(Err(Error::new(ErrorKind::Unavailable, "no reply")));
                    process.late.push(sent);
                }
            }
            Step::Arrive(process) => {
                for sent in std::mem::take(&mut self.processes[process].late) {
                    let _ = sent.decide(&self.counts);
                }
            }
        }
    }

    fn look_for_permit(&mut self, caller: usize) {
        let (process, stage) = &mut self.callers[caller];
        let Stage::Waiting(future, woken) = stage else {
            return;
        };
        woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(woken));
        if let Poll::Ready(acquired) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            let store = &self.processes[*process].store;
            *stage = match acquired {
                Ok(permit) => {
                    store.permits.fetch_add(1, Ordering::Relaxed);
                    Stage::Held(permit)
                }
                Err(_) => Stage::Over,
            };
            store.callers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    async fn used(&self) -> u32 {
        self.look.peek(KEY).await.unwrap().used()
    }

    /// What holds after each step.
    async fn verify(&self) {
        let held = self
            .callers
            .iter()
            .filter(|(_, stage)| matches!(stage, Stage::Held(_)));
        let held = u32::try_from(held.count()).unwrap();
        let used = self.used().await;
        assert!(held <= self.limit, "{held} permits of {}", self.limit);
        assert!(
            held <= used,
            "{held} permits are held, and {used} are counted"
        );
    }

    /// What holds at the end: nothing is used, if no message failed. Otherwise nothing is used after a further message of
    /// each process, which would also come by itself.
    async fn verify_end(&self) {
        let began = Instant::now();
        while !self.has_failed && self.used().await > 0 {
            assert!(began.elapsed() < Duration::from_secs(2), "a slot stays");
            // Releases are gathered for two milliseconds.
            tokio::time::sleep(Duration::from_millis(1)).await;
            settle().await;
            for process in &self.processes {
                process.decide(&self.counts);
            }
            settle().await;
        }
        loop {
            for process in &self.processes {
                let mut asked = Box::pin(process.limiter.try_acquire(KEY));
                let mut cx = Context::from_waker(Waker::noop());
                let acquired = loop {
                    if let Poll::Ready(acquired) = asked.as_mut().poll(&mut cx) {
                        break acquired;
                    }
                    settle().await;
                    process.decide(&self.counts);
                };
                process.store.callers.fetch_add(1, Ordering::Relaxed);
                if let Ok(Acquired::Permit(permit)) = acquired {
                    drop(permit);
                }
                process.store.callers.fetch_sub(1, Ordering::Relaxed);
                settle().await;
                process.decide(&self.counts);
                settle().await;
            }
            if self.used().await == 0 {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(2), "a slot stays");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Lets the tasks of the processes run until each of them waits.
async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Runs the order of these choices, each the number of a step and how many steps there were. Behind them, the first step
/// that can be taken is.
fn run(world: impl Fn() -> World, choices: &mut Vec<(usize, usize)>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = world();
        let mut taken = Vec::new();
        for number in 0.. {
            let steps = world.steps();
            if steps.is_empty() {
                break;
            }
            if choices.len() == number {
                choices.push((0, steps.len()));
            }
            let choice = &mut choices[number];
            // There are others than the last time if the machine was slow, and a poll of a waiting caller came earlier.
            *choice = (choice.0 % steps.len(), steps.len());
            let step = steps[choice.0];
            taken.push(step);
            let shown = Shown(&taken);
            world.take(step);
            settle().await;
            world.verify().await;
            drop(shown);
        }
        let shown = Shown(&taken);
        world.verify_end().await;
        drop(shown);
    });
}

/// Prints the order in which an assertion has failed.
struct Shown<'a>(&'a [Step]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:?}", self.0);
        }
    }
}

/// Runs every order. Returns how many there are.
fn in_every_order(world: impl Fn() -> World) -> usize {
    let mut choices = Vec::new();
    for orders in 1.. {
        run(&world, &mut choices);
        // The last choice that has another alternative takes it.
        while choices.pop_if(|(choice, of)| *choice + 1 == *of).is_some() {}
        match choices.last_mut() {
            Some((choice, _)) => *choice += 1,
            None => return orders,
        }
    }
    unreachable!("there is an end")
}

#[test]
fn two_callers_of_one_process_in_every_order() {
    for limit in [1, 2] {
        let orders = in_every_order(|| World::new(limit, &[0, 0], 1));
        println!("limit {limit}: {orders} orders");
    }
}

#[test]
fn two_processes_in_every_order() {
    let orders = in_every_order(|| World::new(1, &[0, 1], 1));
    println!("{orders} orders");
}

#[test]
fn two_callers_in_each_of_two_processes_in_random_orders() {
    let mut random = 1_u64;
    for _ in 0..1_000 {
        let choices = std::iter::repeat_with(|| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (usize::try_from(random >> 40).unwrap(), 0)
        });
        run(
            || World::new(2, &[0, 0, 1, 1], 2),
            &mut choices.take(60).collect(),
        );
    }
}
