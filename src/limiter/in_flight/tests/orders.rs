//! The permits of processes in every order in which callers, messages and their replies can come: no key has two messages
//! under way, no message states another number than is held, and no slot is given twice or lost.
//!
//! A process changes its permits under one lock, so threads add no orders to those of the operations. The test therefore
//! runs on one thread and goes through all orders of operations, as loom does with threads. It sends the messages of the
//! tables itself, in place of their threads.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::super::message::{Message, Reply};
use super::super::permit::{Acquired, Permit};
use super::super::request::SlotsOfCheck;
use super::super::table::{PermitTable, SlotCheck};
use crate::decision::StoreId;
use crate::error::Error;
use crate::limiter::RateLimiter;
use crate::limiter::asked_level::AskedLevel;
use crate::quota::Quota;
use crate::store::{Check, MemoryStore, OwnedCheck, Store, StoreFuture, TestClock};

const KEY: &str = "ada";

/// The store of one process, which has no thread that asks it.
struct NotAsked(StoreId);

impl Store for NotAsked {
    fn id(&self) -> StoreId {
        self.0
    }

    fn check(&self, _: &[Check<'_>]) -> StoreFuture {
        panic!("the test sends the messages")
    }
}

fn decide(checks: &[Check<'_>], counts: &MemoryStore) -> Reply {
    let answers = counts.check(checks).try_ready();
    answers.expect("the memory answers at once")
}

/// A process, with a table of permits of its own.
struct Process {
    limiter: RateLimiter,
    table: Arc<PermitTable>,
    under_way: Vec<Message>,
    /// Messages without a reply, which may arrive later, or never.
    late: Vec<Vec<OwnedCheck>>,
    /// The permits, and the callers that may have a permit without knowing it yet.
    permits: u32,
    callers: u32,
}

impl Process {
    fn new(limit: u32) -> Self {
        let store = NotAsked(StoreId::unique());
        let limiter = RateLimiter::new(store, Quota::in_flight(limit));
        let table = Arc::clone(&limiter.permits().table);
        // It starts no thread, as if there was one that looks at once.
        table.with(|state, _| state.looks_at = Some(0));
        Self {
            limiter,
            table,
            under_way: Vec::new(),
            late: Vec::new(),
            permits: 0,
            callers: 0,
        }
    }

    fn send(&mut self) {
        let table = &self.table;
        let new = table.with(|state, now| state.due(table.holder, now));
        let least = self.permits;
        let most = self.permits + self.callers;
        let checks = new
            .iter()
            .flat_map(|message| &message.parts)
            .flat_map(SlotCheck::checks);
        for check in checks {
            let held = check.holding.expect("a check of slots").held;
            assert!(
                (least..=most).contains(&held),
                "{least} to {most} slots are held, and {held} stated"
            );
        }
        self.under_way.extend(new);
        assert!(self.under_way.len() <= 1, "two messages are under way");
    }

    fn complete(&mut self, counts: Option<&MemoryStore>) {
        for message in std::mem::take(&mut self.under_way) {
            let replies = counts.into_iter().flat_map(|counts| {
                message
                    .parts
                    .iter()
                    .map(|part| decide(&part.checks(), counts))
            });
            let replies = replies.collect();
            let table = &self.table;
            table.with(|state, now| state.complete(table, message, replies, now));
        }
    }

    fn decide(&mut self, counts: &MemoryStore) {
        self.complete(Some(counts));
    }

    fn fail(&mut self) {
        for part in self.under_way.iter().flat_map(|message| &message.parts) {
            let checks = part.checks();
            self.late.push(checks.iter().map(Check::owned).collect());
        }
        self.complete(None);
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

/// The steps that can happen next.
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
            if !state.under_way.is_empty() {
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
                let process = &mut self.processes[*process];
                process.callers += 1;
                let limiter = process.limiter.clone();
                let future = Box::pin(async move { limiter.acquire(KEY).await });
                let woken = Arc::new(Woken::default());
                *stage = Stage::Waiting(future, woken);
                self.look_for_permit(caller);
            }
            Step::Look(caller) => self.look_for_permit(caller),
            Step::End(caller) => {
                let (process, stage) = &mut self.callers[caller];
                let process = &mut self.processes[*process];
                match std::mem::replace(stage, Stage::Over) {
                    Stage::Held(permit) => {
                        process.permits -= 1;
                        drop(permit);
                    }
                    waiting => {
                        process.callers -= 1;
                        drop(waiting);
                    }
                }
            }
            Step::Decide(process) => self.processes[process].decide(&self.counts),
            Step::Fail(process) => {
                self.failures -= 1;
                self.has_failed = true;
                self.processes[process].fail();
            }
            Step::Arrive(process) => {
                for part in std::mem::take(&mut self.processes[process].late) {
                    let checks: Vec<_> = part.iter().map(OwnedCheck::check).collect();
                    let _ = decide(&checks, &self.counts);
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
            let process = &mut self.processes[*process];
            *stage = match acquired {
                Ok(permit) => {
                    process.permits += 1;
                    Stage::Held(permit)
                }
                Err(_) => Stage::Over,
            };
            process.callers -= 1;
        }
    }

    fn settle(&mut self) {
        self.processes.iter_mut().for_each(Process::send);
    }

    async fn used(&self) -> u32 {
        self.look.peek(KEY).await.unwrap().used()
    }

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

    /// Asserts the rules that hold at the end. If no message failed, nothing is used. Otherwise nothing is used after a
    /// further message of each process, which would also come by itself.
    async fn verify_end(&mut self) {
        let began = Instant::now();
        while !self.has_failed && self.used().await > 0 {
            assert!(began.elapsed() < Duration::from_secs(2), "a slot stays");
            // Releases are gathered for two milliseconds.
            std::thread::sleep(Duration::from_millis(1));
            self.settle();
            for process in &mut self.processes {
                process.decide(&self.counts);
            }
            self.settle();
        }
        loop {
            for process in &mut self.processes {
                process.callers += 1;
                let limiter = process.limiter.clone();
                let mut asked = Box::pin(limiter.try_acquire(KEY));
                let mut cx = Context::from_waker(Waker::noop());
                let acquired = loop {
                    if let Poll::Ready(acquired) = asked.as_mut().poll(&mut cx) {
                        break acquired;
                    }
                    process.send();
                    process.decide(&self.counts);
                };
                if let Ok(Acquired::Permit(permit)) = acquired {
                    drop(permit);
                }
                process.callers -= 1;
                process.send();
                process.decide(&self.counts);
                process.send();
            }
            if self.used().await == 0 {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(2), "a slot stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs the order of these choices, each the number of a step and how many steps there were. Behind them, the first step
/// that can be taken is.
fn run(world: impl Fn() -> World, choices: &mut Vec<(usize, usize)>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
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
            // There are others than the last time if the machine was slow, and a release was sent earlier.
            *choice = (choice.0 % steps.len(), steps.len());
            let step = steps[choice.0];
            taken.push(step);
            let printed = PrintedOrder(&taken);
            world.take(step);
            world.settle();
            world.verify().await;
            drop(printed);
        }
        let printed = PrintedOrder(&taken);
        world.verify_end().await;
        drop(printed);
    });
}

/// Prints the order in which an assertion has failed.
struct PrintedOrder<'a>(&'a [Step]);

impl Drop for PrintedOrder<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:?}", self.0);
        }
    }
}

fn in_every_order(world: impl Fn() -> World) -> usize {
    let mut choices = Vec::new();
    for orders in 1.. {
        run(&world, &mut choices);
        // The last choice that has another alternative takes it.
        while choices
            .pop_if(|(choice, steps)| *choice + 1 == *steps)
            .is_some()
        {}
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

#[tokio::test]
async fn a_reply_grants_nothing_that_the_counts_of_this_process_have_given_meanwhile() {
    let counts = MemoryStore::with_clock(TestClock::new());
    let own_counts = MemoryStore::with_clock(TestClock::new());
    let mut process = Process::new(1);
    let limiter = process.limiter.clone();
    let mut acquiring = Box::pin(limiter.acquire(KEY));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(acquiring.as_mut().poll(&mut cx).is_pending());
    process.callers = 1;
    process.send();
    let level = AskedLevel::new(&process.limiter, KEY, 1);
    let mut slots = SlotsOfCheck::new(None);
    let answers = slots
        .hold_in_turn(&process.limiter, &[&level], |checks| {
            decide(checks, &own_counts).ok()
        })
        .unwrap();
    assert!(answers.are_admitted());
    process.permits = 1;
    process.decide(&counts);
    assert!(matches!(
        acquiring.as_mut().poll(&mut cx),
        Poll::Ready(Err(_))
    ));
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
