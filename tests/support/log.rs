//! What is logged on this thread. One subscriber for the whole program: those that come and go with
//! tests on other threads switch lines on and off for all.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Once;

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct OfThread;

impl Write for OfThread {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.write(buf))
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
    LOG.with_borrow_mut(Vec::clear);
}

/// The lines that were logged since.
pub(crate) fn kept() -> Vec<String> {
    let bytes = LOG.with_borrow_mut(std::mem::take);
    let text = String::from_utf8(bytes).expect("text");
    text.lines().map(str::to_owned).collect()
}
