//! Credentials that expire: fetched from the application, shared by all connections, renewed on each of them.

use std::error::Error as StdError;
use std::fmt;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, RedisConnectionInfo};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connection::{Boxed, Owner};
use crate::error::{Error, warning};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors as error;
use crate::store::redis::real_time;

/// The limit on one fetch, apart from the limit on connecting: a client of a token service needs time for retries. Checks
/// do not wait for it, because they have the deadline of the store.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The shortest time between two fetches, and between two attempts to renew. Nodes that connect together share a fetch,
/// and a token service that is down is not asked by each attempt to connect.
const RETRY: Duration = Duration::from_secs(1);

/// The user and the password of a connection to Redis, for [`RedisStore::credentials`](crate::RedisStore::credentials).
///
/// The password may be a token that expires. The `Debug` output does not contain it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::Credentials;
///
/// let credentials = Credentials::new("app", "token").valid_for(Duration::from_secs(900));
/// assert!(!format!("{credentials:?}").contains("token"));
/// ```
#[derive(Clone)]
pub struct Credentials {
    user: Option<String>,
    password: String,
    life: Option<Duration>,
}

impl Credentials {
    /// Creates the credentials of a user.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            ..Self::password_only(password)
        }
    }

    /// Creates credentials without a user, for servers that know only a password, such as Google Memorystore.
    ///
    /// Such a server takes them as the password of the user `default`, as it takes the password in
    /// `redis://:password@host`.
    #[must_use]
    pub fn password_only(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: password.into(),
            life: None,
        }
    }

    /// Sets the time for which a server accepts the credentials, from now on.
    ///
    /// After 3/4 of it, but at least a second, the store asks for new ones and authenticates its connections with
    /// them. By default, there is no such time: credentials are asked for when a connection is made, at most once a
    /// second, and an established connection keeps them.
    #[must_use]
    pub fn valid_for(self, life: Duration) -> Self {
        let life = Some(life);
        Self { life, ..self }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("valid_for", &self.life)
            .finish_non_exhaustive()
    }
}

/// The outcome of the application's closure.
type Provided = Result<Credentials, Box<dyn StdError + Send + Sync>>;

/// The application's closure, and what it returned last. All connections of a store share it.
pub(crate) struct CredentialSource {
    provide: Arc<dyn Fn() -> Boxed<'static, Provided> + Send + Sync>,
    state: Mutex<State>,
    fetches: RenewalLog,
}

#[derive(Default)]
struct State {
    kept: Option<Arc<Login>>,
    /// Why the last fetch failed, and when.
    failure: Option<(Arc<str>, Instant)>,
    /// Closed at the end of the fetch that is in progress, and when it began.
    fetch: Option<(watch::Receiver<()>, Instant)>,
}

/// Credentials that were fetched.
pub(super) struct Login {
    credentials: Credentials,
    fetched_at: Instant,
}

/// Logs the first of several renewals that fail, and the first that succeeds after them.
#[derive(Default)]
struct RenewalLog(AtomicBool);

impl Login {
    /// Returns the time until they are replaced.
    fn left(&self) -> Duration {
        let life = self.credentials.life;
        let kept = life.map_or(RETRY, |life| (life / 4 * 3).max(RETRY));
        kept.saturating_sub(self.fetched_at.elapsed())
    }

    fn is_valid(&self) -> bool {
        let life = self.credentials.life;
        life.is_some_and(|life| self.fetched_at.elapsed() < life)
    }

    /// Returns the settings with this user and password.
    pub(super) fn apply_to(&self, info: &ConnectionInfo) -> ConnectionInfo {
        let Credentials { user, password, .. } = &self.credentials;
        let of_password = RedisConnectionInfo::default()
            .set_db(info.redis_settings().db())
            .set_password(password);
        info.clone().set_redis_settings(match user {
            Some(user) => of_password.set_username(user),
            None => of_password,
        })
    }
}

impl RenewalLog {
    fn failed(&self, error: &Error) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "tollgate::diagnostics",
                code = warning::OLD_CREDENTIALS,
                "failed to renew the credentials of a connection, which keeps the last ones: {error}"
            );
        }
    }

    fn succeeded(&self, server: &ServerName) {
        if self.0.swap(false, Ordering::Relaxed) {
            tracing::info!(
                target: "tollgate::diagnostics",
                "the credentials of the connection to {server} are renewed again"
            );
        }
    }
}

impl State {
    /// Returns the outcome of a fetch, unless another one is due.
    fn outcome(&self) -> Option<Result<Arc<Login>, Arc<str>>> {
        match (&self.kept, &self.failure) {
            (Some(kept), _) if !kept.left().is_zero() => Some(Ok(Arc::clone(kept))),
            (_, Some((cause, failed_at))) if failed_at.elapsed() < RETRY => {
                Some(Err(Arc::clone(cause)))
            }
            _ => None,
        }
    }

    /// Returns the fetch in progress and the time that it has left. A runtime that stands still has none left, and one that
    /// has ended has closed the channel.
    fn fetch(&self) -> Option<(watch::Receiver<()>, Duration)> {
        let (end, since) = self.fetch.as_ref()?;
        let left = FETCH_TIMEOUT.checked_sub(since.elapsed())?;
        end.has_changed().is_ok().then(|| (end.clone(), left))
    }
}

impl CredentialSource {
    pub(crate) fn new<F, R>(provide: F) -> Arc<Self>
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Provided> + Send + 'static,
    {
        Arc::new(Self {
            provide: Arc::new(move || Box::pin(provide())),
            state: Mutex::default(),
            fetches: RenewalLog::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns credentials for a new connection, or the cause. If a fetch fails, the last ones are still good to the end
    /// of their life.
    pub(super) async fn for_connection(&self) -> Result<Arc<Login>, Arc<str>> {
        self.current().await.or_else(|cause| {
            let kept = self.state().kept.clone();
            kept.filter(|kept| kept.is_valid()).ok_or(cause)
        })
    }

    /// Returns the kept credentials, or else the outcome of a fetch. At most one is in progress.
    async fn current(&self) -> Result<Arc<Login>, Arc<str>> {
        let end = loop {
            let (mut others, left) = {
                let mut state = self.state();
                if let Some(outcome) = state.outcome() {
                    return outcome;
                }
                match state.fetch() {
                    Some(fetch) => fetch,
                    None => {
                        let (end, ended) = watch::channel(());
                        state.fetch = Some((ended, Instant::now()));
                        break end;
                    }
                }
            };
            let _ = real_time::timeout(left, others.changed()).await;
        };
        let outcome = self.fetch().await;
        let mut state = self.state();
        match &outcome {
            Ok(login) => state.kept = Some(Arc::clone(login)),
            Err(cause) => state.failure = Some((Arc::clone(cause), Instant::now())),
        }
        // Those who wait find the outcome.
        drop(end);
        outcome
    }

    async fn fetch(&self) -> Result<Arc<Login>, Arc<str>> {
        let provide = Arc::clone(&self.provide);
        // In a task: a panic of the application must not end the attempt to connect, which others wait for.
        let mut fetch = JoinSet::new();
        fetch.spawn(async move { provide().await });
        match real_time::timeout(FETCH_TIMEOUT, fetch.join_next()).await {
            Some(Some(Ok(Ok(credentials)))) => Ok(Arc::new(Login {
                credentials,
                fetched_at: Instant::now(),
            })),
            Some(Some(Ok(Err(error)))) => {
                // The client of a service often tells the cause in a source only.
                let error: &dyn StdError = &*error;
                let causes = successors(Some(error), |&error| error.source());
                let texts = Vec::from_iter(causes.map(ToString::to_string));
                Err(texts.join(": ").into())
            }
            Some(_) => Err("the closure panicked".into()),
            None => Err(format!("no answer within {FETCH_TIMEOUT:?}").into()),
        }
    }

    /// Forgets credentials that a server has rejected, so that the next attempt asks for others. New ones are kept: the
    /// server would reject the next ones too, and no token service is asked by each attempt.
    pub(super) fn reject(&self, login: &Arc<Login>) {
        let mut state = self.state();
        let is_kept = |kept: &mut Arc<Login>| Arc::ptr_eq(kept, login);
        if login.fetched_at.elapsed() >= RETRY {
            state.kept.take_if(is_kept);
        }
    }

    /// Replaces a connection before its credentials expire.
    ///
    /// No `AUTH` is sent over a connection with calls: if it is refused behind other commands, Redis from 7.2 and Valkey 8
    /// leave out its reply, and each call after it would get the reply of the next one.
    /// <https://github.com/redis/redis/issues/15640>
    pub(super) async fn renew(
        self: Arc<Self>,
        login: Arc<Login>,
        server: ServerName,
        owner: Arc<dyn Owner>,
    ) {
        let refusals = RenewalLog::default();
        let mut wait = login.left();
        while login.credentials.life.is_some() {
            // By the clock of tokio, so that a test that pauses it does not wait for this task.
            tokio::time::sleep(wait).await;
            wait = RETRY;
            if let Err(cause) = self.current().await {
                self.fetches.failed(&error::no_credentials(&server, &cause));
                continue;
            }
            self.fetches.succeeded(&server);
            match owner.renew().await {
                Ok(()) => return refusals.succeeded(&server),
                Err(failure) => refusals.failed(&failure.into_error(RETRY)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn those_who_connect_together_share_a_fetch_but_not_one_that_stands_still() {
        let fetches = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&fetches);
        let source = CredentialSource::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(Credentials::password_only("token"))
            }
        });
        let (_standing_still, ended) = watch::channel(());
        source.state().fetch = Instant::now()
            .checked_sub(FETCH_TIMEOUT)
            .map(|since| (ended, since));
        let mut logins = JoinSet::new();
        for _ in 0..10 {
            let source = Arc::clone(&source);
            logins.spawn(async move { source.for_connection().await.is_ok() });
        }
        assert_eq!(logins.join_all().await, [true; 10]);
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn credentials_are_replaced_at_three_quarters_of_their_life_but_not_each_millisecond() {
        let left = |life: Option<u64>| {
            let credentials = Credentials::password_only("token");
            let credentials = match life {
                Some(life) => credentials.valid_for(Duration::from_secs(life)),
                None => credentials,
            };
            let fetched_at = Instant::now();
            let login = Login {
                credentials,
                fetched_at,
            };
            login.left().as_secs_f64().round()
        };
        for (life, expected) in [
            (Some(900), 675.0),
            (Some(3_600), 2_700.0),
            (Some(0), 1.0),
            (None, 1.0),
        ] {
            assert_eq!(left(life), expected, "{life:?}");
        }
        assert!(left(Some(u64::MAX)) > 1e18);
    }
}
