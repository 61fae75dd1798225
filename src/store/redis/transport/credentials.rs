//! Credentials that expire: fetched from the application, shared by all connections, renewed on each of them.

use std::error::Error as StdError;
use std::fmt;
use std::iter::successors;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, RedisConnectionInfo};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connection::{Boxed, ConnectionOwner};
use super::failure::Failure;
use crate::error::{Error, warning};
use crate::lock::Mutex;
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors as error;
use crate::store::redis::real_time;

/// The limit on one fetch, apart from the limit on connecting: a client of a token service needs time for retries. Checks
/// do not wait for it, because they have the deadline of the store.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The time after which the runtime of a fetch stands still: the task would have ended it before.
const STANDSTILL: Duration = Duration::from_secs(11);

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
    /// The servers of the store, for the log.
    servers: ServerName,
    provide: Arc<Provide>,
    state: Mutex<CredentialState>,
}

type Provide = dyn Fn() -> Boxed<'static, Provided> + Send + Sync;

#[derive(Default)]
struct CredentialState {
    kept: Option<Arc<Login>>,
    /// Why the last fetch failed, and when.
    failure: Option<(Arc<str>, Instant)>,
    fetch: Option<Fetch>,
    /// Whether it was logged that fetches fail.
    is_failing: bool,
}

/// A fetch, which is in progress until its task has ended.
struct Fetch {
    began: Instant,
    /// Closed at the end of the task.
    end: watch::Receiver<()>,
    #[expect(dead_code, reason = "held for its Drop")]
    task: JoinSet<()>,
}

/// Credentials that were fetched.
pub(super) struct Login {
    credentials: Credentials,
    fetched_at: Instant,
}

/// A connection that keeps its last credentials, because the server rejects newer ones. Logs its beginning and its end.
struct RefusedRenewal {
    server: ServerName,
    is_over: bool,
}

impl Login {
    fn left(&self) -> Duration {
        let life = self.credentials.life;
        let kept = life.map_or(RETRY, |life| (life / 4 * 3).max(RETRY));
        kept.saturating_sub(self.fetched_at.elapsed())
    }

    fn is_valid(&self) -> bool {
        let life = self.credentials.life;
        life.is_some_and(|life| self.fetched_at.elapsed() < life)
    }

    pub(super) fn apply_to(&self, info: &ConnectionInfo) -> ConnectionInfo {
        let Credentials { user, password, .. } = &self.credentials;
        let mut settings = RedisConnectionInfo::default()
            .set_db(info.redis_settings().db())
            .set_password(password);
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        info.clone().set_redis_settings(settings)
    }
}

impl RefusedRenewal {
    fn begin(server: &ServerName, failure: Failure) -> Self {
        warn_about_old_credentials(&failure.into_error(RETRY));
        Self {
            server: server.clone(),
            is_over: false,
        }
    }
}

impl Drop for RefusedRenewal {
    fn drop(&mut self) {
        let server = &self.server;
        if self.is_over {
            tracing::info!(
                target: "tollgate::diagnostics",
                "the credentials of the connection to {server} are renewed again"
            );
        } else {
            tracing::info!(
                target: "tollgate::diagnostics",
                "the connection to {server} that kept its last credentials has ended"
            );
        }
    }
}

fn warn_about_old_credentials(error: &Error) {
    tracing::warn!(
        target: "tollgate::diagnostics",
        code = warning::OLD_CREDENTIALS,
        "failed to renew the credentials of a connection, which keeps the last ones: {error}"
    );
}

impl Fetch {
    /// Returns the time that the fetch has left. A runtime that stands still has none left, and one that has ended has
    /// closed the channel.
    fn left(&self) -> Option<Duration> {
        let left = STANDSTILL.checked_sub(self.began.elapsed())?;
        self.end.has_changed().is_ok().then_some(left)
    }
}

impl CredentialState {
    fn outcome(&self) -> Option<Result<Arc<Login>, Arc<str>>> {
        match (&self.kept, &self.failure) {
            (Some(kept), _) if !kept.left().is_zero() => Some(Ok(Arc::clone(kept))),
            (_, Some((cause, failed_at))) if failed_at.elapsed() < RETRY => {
                Some(Err(Arc::clone(cause)))
            }
            _ => None,
        }
    }

    fn valid(&self) -> Option<&Arc<Login>> {
        self.kept.as_ref().filter(|kept| kept.is_valid())
    }
}

impl CredentialSource {
    pub(crate) fn new<F, R>(servers: ServerName, provide: F) -> Arc<Self>
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Provided> + Send + 'static,
    {
        Arc::new(Self {
            servers,
            provide: Arc::new(move || Box::pin(provide())),
            state: Mutex::default(),
        })
    }

    /// Returns credentials for a new connection, or the cause. It waits for a fetch only if the last ones are not valid any
    /// more.
    pub(super) async fn for_connection(self: &Arc<Self>) -> Result<Arc<Login>, Arc<str>> {
        let valid = {
            let mut state = self.state.lock();
            let valid = state.valid().cloned();
            if valid.is_some() && state.outcome().is_none() {
                self.fetch(&mut state);
            }
            valid
        };
        match valid {
            Some(valid) => Ok(valid),
            None => self.current().await,
        }
    }

    /// Returns why a new connection has to wait, if it waits for credentials.
    pub(super) fn obstacle(&self) -> Option<Arc<str>> {
        let state = self.state.lock();
        let fetch = state.fetch.as_ref().filter(|fetch| fetch.left().is_some());
        let waits = state.valid().is_none() && state.outcome().is_none();
        let waited = fetch.filter(|_| waits)?.began.elapsed().as_millis();
        Some(format!("no answer for {waited} ms").into())
    }

    async fn current(self: &Arc<Self>) -> Result<Arc<Login>, Arc<str>> {
        loop {
            let (mut end, left) = {
                let mut state = self.state.lock();
                if let Some(outcome) = state.outcome() {
                    return outcome;
                }
                self.fetch(&mut state)
            };
            let _ = real_time::timeout(left, end.changed()).await;
        }
    }

    /// Starts a fetch in the current runtime, unless one is in progress. Returns its end, and the time that it has left.
    fn fetch(self: &Arc<Self>, state: &mut CredentialState) -> (watch::Receiver<()>, Duration) {
        if let Some(fetch) = &state.fetch
            && let Some(left) = fetch.left()
        {
            return (fetch.end.clone(), left);
        }
        let (ending, end) = watch::channel(());
        let source = Arc::downgrade(self);
        let provide = Arc::clone(&self.provide);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let outcome = fetched(provide).await;
            if let Some(source) = source.upgrade() {
                source.take_in(outcome);
            }
            // Those who wait find the outcome.
            drop(ending);
        });
        state.fetch = Some(Fetch {
            began: Instant::now(),
            end: end.clone(),
            task,
        });
        (end, STANDSTILL)
    }

    /// Takes in the outcome of a fetch. Logs the first of several that fail while there are older credentials, and the first
    /// that succeeds after them.
    fn take_in(&self, outcome: Result<Arc<Login>, Arc<str>>) {
        let mut state = self.state.lock();
        match outcome {
            Ok(login) => {
                state.kept = Some(login);
                let was_failing = mem::take(&mut state.is_failing);
                drop(state);
                if was_failing {
                    tracing::info!(
                        target: "tollgate::diagnostics",
                        "the credentials for {} are renewed again", self.servers
                    );
                }
            }
            Err(cause) => {
                state.failure = Some((Arc::clone(&cause), Instant::now()));
                let is_first = state.kept.is_some() && !mem::replace(&mut state.is_failing, true);
                drop(state);
                if is_first {
                    warn_about_old_credentials(&error::no_credentials(&self.servers, &cause));
                }
            }
        }
    }

    /// Forgets credentials that a server has rejected, so that the next attempt asks for others. New ones are kept: the
    /// server would reject the next ones too, and no token service is asked by each attempt.
    pub(super) fn reject(&self, login: &Arc<Login>) {
        if login.fetched_at.elapsed() >= RETRY {
            self.state
                .lock()
                .kept
                .take_if(|kept| Arc::ptr_eq(kept, login));
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
        owner: Arc<dyn ConnectionOwner>,
    ) {
        let mut refused: Option<RefusedRenewal> = None;
        let mut wait = login.left();
        while login.credentials.life.is_some() {
            // By the clock of tokio, so that a test that pauses it does not wait for this task.
            tokio::time::sleep(wait).await;
            wait = RETRY;
            if self.current().await.is_err() {
                continue;
            }
            match owner.renew().await {
                Ok(()) => {
                    if let Some(refused) = &mut refused {
                        refused.is_over = true;
                    }
                    return;
                }
                Err(failure) => {
                    refused.get_or_insert_with(|| RefusedRenewal::begin(&server, failure));
                }
            }
        }
    }
}

async fn fetched(provide: Arc<Provide>) -> Result<Arc<Login>, Arc<str>> {
    // In a task of its own: a panic of the application is an outcome.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn those_who_connect_together_share_a_fetch_but_not_one_that_stands_still() {
        let fetches = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&fetches);
        let source = CredentialSource::new(ServerName::UNKNOWN, move || {
            counter.fetch_add(1, Ordering::Relaxed);
            async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(Credentials::password_only("token"))
            }
        });
        let (_standing_still, end) = watch::channel(());
        let began = Instant::now().checked_sub(STANDSTILL);
        source.state.lock().fetch = began.map(|began| Fetch {
            began,
            end,
            task: JoinSet::new(),
        });
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
