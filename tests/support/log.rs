//! Captures the log of this thread, and of threads that join it. The program has one subscriber, because
//! subscribers that come and go enable and disable lines for all threads.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, Once, PoisonError};

thread_local! {
    static LOG: RefCell<Log> = RefCell::default();
}

/// What one test has logged, on whichever of its threads.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn with<T>(&self, f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes this thread write to the same log, for threads of a runtime.
    pub(crate) fn adopt(&self) {
        LOG.set(self.clone());
    }
}

struct OfThread;

impl Write for OfThread {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        LOG.with_borrow(|log| log.with(|bytes| bytes.write(buf)))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to keep what is logged.
pub(crate) fn keep() {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_writer(|| OfThread)
            .with_ansi(false)
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("the first subscriber");
    });
    Log::default().adopt();
}

/// The log of this thread.
pub(crate) fn of_thread() -> Log {
    LOG.with_borrow(Log::clone)
}

/// The lines that were logged since, but those of each refusal.
pub(crate) fn kept() -> Vec<String> {
    let mut lines = all_kept();
    lines.retain(|line| !line.contains("tollgate::check:"));
    lines
}

/// All lines that were logged since.
pub(crate) fn all_kept() -> Vec<String> {
    let bytes = of_thread().with(std::mem::take);
    let text = String::from_utf8(bytes).expect("text");
    text.lines().map(str::to_owned).collect()
}
