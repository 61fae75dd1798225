//! Deadlines of I/O. Only the time in which this process runs counts.
//!
//! A process may stand still: stopped, at its limit of CPU, or behind a task that blocks the runtime. The reply of a healthy
//! server then lies in the socket, and a timer wins against it. So a deadline is waited for in steps. A step that ends late
//! was no time to read a reply, and before a deadline ends a call, what has arrived is read once more.
//!
//! All times are of the monotonic clock of the system. A clock of tokio that a test has paused jumps to the next timer whenever
//! the runtime only waits for I/O, even if the reply of a server is on its way. So a timer of tokio alone would end each call
//! at once.

use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

/// The steps of a deadline. Each costs a wake-up.
const STEPS: u32 = 10;

/// The shortest step: a healthy server has answered within the first one.
const MIN_STEP: Duration = Duration::from_millis(10);

/// The least delay of a step that counts as a standstill. Timers of tokio are up to 2 ms late.
const MIN_STANDSTILL: Duration = Duration::from_millis(5);

/// The time after a deadline in which a reply that has arrived is read: the runtime looks at its sockets once more, and
/// runs the tasks that read them.
const LAST_READ: Duration = Duration::from_millis(2);

/// Waits for I/O of a store. Returns `None` if it takes longer than this.
///
/// Only the time in which this process runs counts. A process that was stopped, or at its limit of CPU, still reads the
/// reply that has arrived meanwhile. Tokio's `timeout` would fail: its timer is over before the socket is read.
///
/// Users of the store can test with a paused clock. The clock jumps by this time at most, and then stands still until the future
/// is ready or the time has really passed.
///
/// # Panics
///
/// Panics outside of a tokio runtime with a time driver.
pub async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    // Pinned here, since an argument that is pinned further down would be copied into each future on the way.
    let future = pin!(future);
    Deadline::new(limit).wait(future).await.ok()
}

/// The time for the waits of one call.
#[derive(Debug)]
pub(crate) struct Deadline {
    clock: RunningClock,
    since: Instant,
    limit: Duration,
    end: RunningTime,
}

/// A missed deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    /// When the deadline began.
    #[cfg_attr(
        not(any(feature = "redis", test)),
        expect(dead_code, reason = "only the Redis store compares it")
    )]
    pub(crate) since: Instant,
    /// The time in which this process stood still meanwhile.
    pub(crate) standstill: Duration,
}

impl Deadline {
    pub(crate) fn new(limit: Duration) -> Self {
        let clock = RunningClock::new(limit);
        let Moment { at, running, .. } = clock.last_look;
        Self {
            clock,
            since: at,
            limit,
            end: running.after(limit),
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn began(&self) -> Instant {
        self.since
    }

    #[cfg(feature = "redis")]
    pub(crate) fn waited_until(&self) -> Instant {
        self.clock.last_look.at
    }

    #[cfg(any(feature = "redis", test))]
    pub(crate) fn left(&mut self) -> Duration {
        self.end.since(self.clock.look().running)
    }

    /// Waits for a future until the deadline, and reads once what has arrived by then.
    pub(crate) async fn wait<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Late> {
        let mut future = pin!(future);
        loop {
            let now = self.clock.last_look;
            if now.running >= self.end {
                let late = now.late(self.since, self.end, self.limit);
                return Self::last_read(future).await.ok_or(late);
            }
            let output = now.wait(Some(self.end), future.as_mut()).await;
            self.clock.look();
            if let Some(output) = output {
                return Ok(output);
            }
        }
    }

    /// Waits for a future after its deadline, for what the runtime reads in its next turn. A turn in which the process stood
    /// still does not count.
    pub(crate) async fn last_read<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        loop {
            let since = Instant::now();
            if let Some(output) = wait_for(LAST_READ, since, future.as_mut()).await {
                return Some(output);
            }
            if since.elapsed() < LAST_READ + MIN_STANDSTILL {
                return None;
            }
        }
    }
}

impl Late {
    /// The remedy of a process that stood still.
    pub(crate) const NEEDS_CPU: &str = "give this process more CPU, and do not block its runtime; if it has enough, \
                                        check the load of the server and the network";

    /// A deadline without any time.
    #[cfg(any(feature = "sentinel", all(feature = "redis", test)))]
    pub(crate) fn now() -> Self {
        Self {
            since: Instant::now(),
            standstill: Duration::ZERO,
        }
    }

    /// Whether the process stood still for at least half as long as the deadline.
    pub(crate) fn is_standstill(self, limit: Duration) -> bool {
        self.standstill >= limit / 2
    }

    /// Describes the standstill of the process, if it is the cause.
    pub(crate) fn standstill_within(self, limit: Duration) -> Option<String> {
        let millis = self.standstill.as_millis();
        self.is_standstill(limit)
            .then(|| format!("this process stood still for {millis}ms meanwhile"))
    }
}

/// A clock of the time in which this process runs, for tasks that look at it once a step while they wait.
#[derive(Debug)]
pub(crate) struct RunningClock {
    last_look: Moment,
    /// The time until which the next look is punctual.
    punctual_until: Instant,
    /// The sum of all standstills.
    standstill: Duration,
}

/// A reading of a [`RunningClock`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) running: RunningTime,
    step: Duration,
}

/// A time of a [`RunningClock`], which stands still with the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunningTime(Instant);

impl RunningClock {
    pub(crate) fn new(limit: Duration) -> Self {
        let now = Instant::now();
        let step = (limit / STEPS).max(MIN_STEP);
        Self {
            last_look: Moment {
                at: now,
                running: RunningTime(now),
                step,
            },
            punctual_until: now + step + MIN_STANDSTILL,
            standstill: Duration::ZERO,
        }
    }

    /// Returns the current time. A look that comes late shows that the process stood still.
    pub(crate) fn look(&mut self) -> Moment {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> Moment {
        let step = self.last_look.step;
        if now >= self.punctual_until {
            let passed = now.saturating_duration_since(self.last_look.at);
            self.standstill += passed.saturating_sub(step);
        }
        self.punctual_until = now + step + MIN_STANDSTILL;
        self.last_look = Moment {
            at: now,
            running: RunningTime(now - self.standstill),
            step,
        };
        self.last_look
    }
}

impl Moment {
    /// Waits for a future for a step, and at most until the deadline. Then the clock has to be looked at again.
    pub(crate) async fn wait<T>(
        self,
        deadline: Option<RunningTime>,
        future: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        let left = deadline.map_or(self.step, |deadline| deadline.since(self.running));
        wait_for(left.min(self.step), self.at, future).await
    }

    /// The end of a wait with this deadline and limit, which began at `since`.
    pub(crate) fn late(self, since: Instant, deadline: RunningTime, limit: Duration) -> Late {
        let ran = limit.saturating_sub(deadline.since(self.running));
        let passed = self.at.saturating_duration_since(since);
        Late {
            since,
            standstill: passed.saturating_sub(ran),
        }
    }
}

impl RunningTime {
    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0 + time)
    }

    /// Returns the time since an earlier one. Zero if that is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

async fn wait_for<T>(
    limit: Duration,
    since: Instant,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut left = limit;
    let mut _task = None;
    loop {
        if let Ok(output) = tokio::time::timeout(left, future.as_mut()).await {
            return Some(output);
        }
        left = limit.checked_sub(since.elapsed())?;
        // A paused clock does not jump while a blocking task runs. This one also ends when its sender is dropped.
        let (sender, receiver) = mpsc::channel::<()>();
        _task = Some(sender);
        spawn_blocking(move || receiver.recv_timeout(left));
    }
}

#[cfg(feature = "redis")]
pub(crate) async fn sleep_until(end: Instant) {
    let now = Instant::now();
    let left = end.saturating_duration_since(now);
    if !left.is_zero() {
        wait_for(left, now, pin!(std::future::pending::<()>())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_look_that_comes_late_shows_a_standstill() {
        let mut clock = RunningClock::new(100 * MS);
        let Moment {
            at: began, running, ..
        } = clock.last_look;
        let (second, end) = (1_000 * MS, running.after(1_000 * MS));
        // When it is looked at, and how long the process has run and stood still by then.
        for (at, ran, standstill) in [
            (3, 3, 0),
            (13, 13, 0),
            // Less than 5 ms late is no standstill.
            (27, 27, 0),
            // The process may have run for a whole step before it stood still.
            (42, 37, 5),
            (342, 47, 295),
            (350, 55, 295),
        ] {
            let now = clock.look_at(began + at * MS);
            assert_eq!(now.running.since(running), ran * MS, "at {at} ms");
            let late = now.late(began, end, second);
            assert_eq!(late.standstill, standstill * MS, "at {at} ms");
        }
    }

    #[tokio::test]
    async fn a_deadline_counts_only_the_time_in_which_the_process_runs() {
        let waiting = async {
            // Later than the deadline, by the time in which this thread is blocked.
            let reply = tokio::time::sleep(250 * MS);
            Deadline::new(100 * MS).wait(reply).await
        };
        let blocked = async {
            tokio::task::yield_now().await;
            thread::sleep(200 * MS);
        };
        let (waited, ()) = tokio::join!(waiting, blocked);
        waited.expect("a reply");
    }

    #[tokio::test]
    async fn a_missed_deadline_tells_how_long_the_process_stood_still() {
        let mut deadline = Deadline::new(100 * MS);
        let waiting = deadline.wait(std::future::pending::<()>());
        let blocked = async {
            tokio::task::yield_now().await;
            thread::sleep(60 * MS);
        };
        let (waited, ()) = tokio::join!(waiting, blocked);
        let late = waited.unwrap_err();
        assert!(late.since.elapsed() >= 150 * MS);
        // The process may have run for a whole step before.
        let standstill = late
            .standstill_within(100 * MS)
            .expect("half of the deadline");
        assert!(standstill.contains("stood still for"), "{standstill}");
    }

    #[tokio::test]
    async fn a_call_that_has_run_for_its_deadline_is_late() {
        let mut deadline = Deadline::new(50 * MS);
        let began = Instant::now();
        deadline
            .wait(tokio::time::sleep(20 * MS))
            .await
            .expect("in time");
        // A thread that is delayed for longer than a step has run for one step at least.
        assert!(deadline.left() <= 40 * MS);
        // The waits of a call share the deadline.
        assert!(deadline.wait(std::future::pending::<()>()).await.is_err());
        assert!(began.elapsed() >= 50 * MS && deadline.left().is_zero());
    }
}
