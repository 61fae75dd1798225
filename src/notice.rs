//! What an operator has to know: one line in the log for each change, never one for each request.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::key::KeyError;
use crate::{Error, ErrorKind};

/// What has been said already, for one layer.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    keys_unknown: AtomicBool,
    store_fails: AtomicBool,
}

impl Notices {
    /// The server cannot know keys as it is set up: said once, it will not pass.
    pub(crate) fn keys_unknown(&self, limiter: &str, error: &KeyError) {
        if !self.keys_unknown.swap(true, Ordering::Relaxed) {
            tracing::error!(limiter, "every request is answered 500: {error}");
        }
    }

    /// The store failed: said when it begins.
    pub(crate) fn store_fails(&self, limiter: &str, error: &Error) {
        if self.store_fails.swap(true, Ordering::Relaxed) {
            return;
        }
        if error.kind() == ErrorKind::Misconfigured {
            tracing::error!(
                limiter,
                "requests are answered 503 until this is mended: {error}"
            );
        } else {
            tracing::warn!(
                limiter,
                "requests are answered 503 until the store is back: {error}"
            );
        }
    }

    /// The store answered: said when it had failed.
    pub(crate) fn store_answers(&self, limiter: &str) {
        // Read first: writing would have all cores pass the line around, on each request.
        if self.store_fails.load(Ordering::Relaxed)
            && self.store_fails.swap(false, Ordering::Relaxed)
        {
            tracing::info!(limiter, "the store answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::key::KeyErrorKind;

    /// What is logged while `steps` run, line by line.
    fn log_of(steps: impl FnOnce()) -> Vec<String> {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer({
                let log = log.clone();
                move || log.clone()
            })
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, steps);
        let bytes = log.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(buf)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unknown_keys_are_one_line_that_says_what_to_do() {
        let error = KeyError::new(KeyErrorKind::Misconfigured, "call the_method()");
        let log = log_of(|| {
            let notices = Notices::default();
            for _ in 0..100 {
                notices.keys_unknown("search", &error);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("ERROR") && log[0].contains("search"),
            "{log:?}"
        );
        assert!(log[0].contains("call the_method()"), "{log:?}");
    }

    #[test]
    fn a_failing_store_is_a_line_when_it_begins_and_one_when_it_ends() {
        let error = Error::new(ErrorKind::Unavailable, "nobody is there");
        let log = log_of(|| {
            let notices = Notices::default();
            for _ in 0..2 {
                for _ in 0..100 {
                    notices.store_fails("search", &error);
                }
                for _ in 0..100 {
                    notices.store_answers("search");
                }
            }
        });
        let levels: Vec<_> = log
            .iter()
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        assert_eq!(levels, ["WARN", "INFO", "WARN", "INFO"], "{log:?}");
        assert!(log[0].contains("nobody is there"), "{log:?}");
    }

    #[test]
    fn a_wrong_setup_is_louder() {
        let error = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let log = log_of(|| Notices::default().store_fails("search", &error));
        assert!(log[0].contains("ERROR"), "{log:?}");
    }
}
