//! The tokio runtime of a caller. Outside of one there are no tasks and no timers, and a store in memory works without.

use tokio::runtime::Handle;

pub(crate) fn is_in_runtime() -> bool {
    Handle::try_current().is_ok()
}

/// Runs a task in the background. Outside of a runtime, drops it.
pub(crate) fn spawn_or_drop(task: impl Future<Output: Send + 'static> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(task));
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn in_a_runtime_a_task_runs() {
        let (sender, receiver) = oneshot::channel();
        assert!(is_in_runtime());
        spawn_or_drop(async move { sender.send(1) });
        assert_eq!(receiver.await, Ok(1));
    }

    #[test]
    fn outside_of_a_runtime_a_task_is_dropped() {
        let (sender, mut receiver) = oneshot::channel::<u32>();
        assert!(!is_in_runtime());
        spawn_or_drop(async move { sender.send(1) });
        assert_eq!(
            receiver.try_recv(),
            Err(oneshot::error::TryRecvError::Closed)
        );
    }
}
