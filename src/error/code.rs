//! The codes of errors and warnings: the table from which the guide's page *messages* is generated.
//!
//! The first paragraph of a code says what happened and why, the second is the remedy. A code without a second one takes its
//! remedies from the table of server errors. A number is never used for another meaning.

use super::kind::{ConfigErrorKind, ErrorKind};
use ErrorKind::{
    CostExceedsLimit, CostTooLarge, Full, InvalidReply, MaxWait, Misconfigured, QueueTimeout,
    QuotasUnknown, Timeout, Unavailable, Unsupported,
};

/// The code of an error. Each has one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) text: &'static str,
    pub(crate) kind: ErrorKind,
}

impl Code {
    const fn new(text: &'static str, kind: ErrorKind) -> Self {
        Self { text, kind }
    }

    /// The cost or the slots of a check are above a limit, or above the bound of a share. No wait helps.
    ///
    /// Lower the cost, or raise the limit.
    pub(crate) const COST_EXCEEDS_LIMIT: Self = Self::new("tollgate::E001", CostExceedsLimit);

    /// A log charges at most 100 000 units at once.
    ///
    /// Lower the cost, or choose another algorithm.
    const COST_TOO_LARGE: Self = Self::new("tollgate::E002", CostTooLarge);

    /// The store did not answer within the deadline: it is overloaded, or the network is slow. Or this process stood still, as the
    /// text then says. The check may have been charged.
    ///
    /// Check the server's load and the network, or raise `RedisStore::deadline`. If the process stood still, give it more
    /// CPU: see [CPU limits](crate::guide::deployment#cpu-limits).
    pub(crate) const TIMEOUT: Self = Self::new("tollgate::E003", Timeout);

    /// The process sends more checks than its connections carry, so one waited here until the deadline. Or it stood still, as
    /// the text then says.
    ///
    /// Take a lease for busy keys, or set `RedisStore::hash_tags`; on a single server, `RedisStore::by_slot` too. If the
    /// process stood still, give it more CPU: see [CPU limits](crate::guide::deployment#cpu-limits).
    pub(crate) const QUEUE_TIMEOUT: Self = Self::new("tollgate::E004", QueueTimeout);

    /// The store cannot serve now, for a reason without a code.
    ///
    /// Try again. If it lasts, read the server's log.
    pub(crate) const UNAVAILABLE: Self = Self::new("tollgate::E005", Unavailable);

    /// The server rejects a command, or a call is wrong, for a reason without a code.
    ///
    /// Follow the text. `tollgate-doctor` examines a server.
    pub(crate) const MISCONFIGURED: Self = Self::new("tollgate::E006", Misconfigured);

    /// The store has no room: a `MemoryStore` has `max_keys` keys near their limits, or the block list is full.
    ///
    /// Raise `max_keys`, or unblock keys.
    const FULL: Self = Self::new("tollgate::E007", Full);

    /// A reply does not match the check: the port belongs to another program, a proxy changes replies, or another
    /// program writes to the keys.
    ///
    /// Correct the address or the prefix. If one key fails, reset it.
    pub(crate) const INVALID_REPLY: Self = Self::new("tollgate::E008", InvalidReply);

    /// The store does not implement an operation, such as refunds or blocks.
    ///
    /// Take a store that does, such as a `StoreOn`.
    const UNSUPPORTED: Self = Self::new("tollgate::E009", Unsupported);

    /// The closure of `quotas_for` returned an error, the source of this one.
    ///
    /// Repair the lookup; return `Plan::Default` for unknown keys.
    const QUOTAS_UNKNOWN: Self = Self::new("tollgate::E010", QuotasUnknown);

    /// `acquire` got no permit within `max_wait`, or its queue was full.
    ///
    /// Raise `max_wait`, `queue` or the limit.
    const MAX_WAIT: Self = Self::new("tollgate::E011", MaxWait);

    /// The circuit breaker is open after failed calls, so the store is not asked.
    ///
    /// Look up the code of the error before this one.
    pub(crate) const BREAKER_OPEN: Self = Self::new("tollgate::E012", Unavailable);

    /// The task of a call ended: its tokio runtime had shut down, or a store panicked. The call may have been charged.
    ///
    /// Keep the runtime until all calls are answered, and settle inside it.
    pub(crate) const TASK_DROPPED: Self = Self::new("tollgate::E013", Unavailable);

    /// `check` holds no slot, but the limiter has a quota in flight.
    ///
    /// Call `acquire` or `try_acquire`.
    pub(crate) const HOLDS_NOTHING: Self = Self::new("tollgate::E014", Misconfigured);

    /// `settle_level` or `add_level` was called with a limiter that has no level in the decision.
    ///
    /// Pass a limiter of the check, or call `settle` or `add`.
    pub(crate) const OTHER_LIMITER: Self = Self::new("tollgate::E015", Misconfigured);

    /// A check of alternatives is asked for what it cannot do: more than 8 alternatives or levels, a wait, a lease, slots in
    /// flight, or soft quotas.
    ///
    /// Leave out what the text names, or check it apart.
    pub(crate) const ALTERNATIVES: Self = Self::new("tollgate::E016", Misconfigured);

    /// A limiter with a `reserve_lease` has a quota beside which no units are held: in flight, soft, with shares, or a
    /// `sorted-set-log`.
    ///
    /// Give that quota its own limiter.
    pub(crate) const NOT_HELD: Self = Self::new("tollgate::E017", Misconfigured);

    // Configuration.

    /// A window is shorter than 1 ms or longer than 366 days.
    ///
    /// Choose one between.
    const WINDOW: Self = Self::new("tollgate::E201", Misconfigured);

    /// A quota, plan, share or algorithm breaks the rule that the text names.
    ///
    /// Follow the example behind the rule.
    const QUOTA: Self = Self::new("tollgate::E202", Misconfigured);

    /// The URL of a store is malformed, needs a feature that is off, or names a TLS file that cannot be read.
    ///
    /// Correct it as the text says. Percent-encode all but letters and digits of a password.
    const URL: Self = Self::new("tollgate::E203", Misconfigured);

    /// A key has an invalid header or network, or `client_ip` has no trusted proxies.
    ///
    /// Correct the name, or write the network like `10.0.0.0/8`.
    const KEY: Self = Self::new("tollgate::E204", Misconfigured);

    /// Levels cannot be decided together: their stores differ, or two count one key under one name.
    ///
    /// Clone one store for all, and name each limiter.
    pub(crate) const LEVELS: Self = Self::new("tollgate::E205", Misconfigured);

    /// A limiter with a lease has a quota that is in flight, a total or soft, or has shares, or it has a `reserve_lease`.
    ///
    /// Remove the lease, or give that quota its own limiter.
    pub(crate) const LEASE: Self = Self::new("tollgate::E206", Misconfigured);

    /// A number or time of a `BlockRule` is out of range.
    ///
    /// Choose one in the range that the text names.
    const BLOCK_RULE: Self = Self::new("tollgate::E207", Misconfigured);

    pub(super) const fn from_kind(kind: ErrorKind) -> Self {
        match kind {
            CostExceedsLimit => Self::COST_EXCEEDS_LIMIT,
            CostTooLarge => Self::COST_TOO_LARGE,
            Timeout => Self::TIMEOUT,
            QueueTimeout => Self::QUEUE_TIMEOUT,
            Unavailable => Self::UNAVAILABLE,
            Misconfigured => Self::MISCONFIGURED,
            Full => Self::FULL,
            InvalidReply => Self::INVALID_REPLY,
            Unsupported => Self::UNSUPPORTED,
            QuotasUnknown => Self::QUOTAS_UNKNOWN,
            MaxWait => Self::MAX_WAIT,
        }
    }

    /// Returns whether a server has replied this that still answers a PING.
    pub(super) fn is_reply(self) -> bool {
        #[cfg(feature = "redis")]
        let replies = [
            Self::REPLICA,
            Self::FEW_REPLICAS,
            Self::NOT_SAVED,
            Self::CLUSTER_DOWN,
            Self::CLOCKS_DIFFER,
        ];
        #[cfg(not(feature = "redis"))]
        let replies = [];
        replies.contains(&self)
    }

    pub(super) const fn from_config_kind(kind: ConfigErrorKind) -> Self {
        match kind {
            ConfigErrorKind::Window => Self::WINDOW,
            ConfigErrorKind::Quota => Self::QUOTA,
            ConfigErrorKind::Url => Self::URL,
            ConfigErrorKind::Key => Self::KEY,
            ConfigErrorKind::Levels => Self::LEVELS,
            ConfigErrorKind::Lease => Self::LEASE,
            ConfigErrorKind::BlockRule => Self::BLOCK_RULE,
        }
    }
}

/// The codes of the Redis store.
#[cfg(feature = "redis")]
impl Code {
    /// No connection to the server: nothing listens at the address, its name has no address, or the network is cut.
    pub(crate) const UNREACHABLE: Self = Self::new("tollgate::E101", Unavailable);

    /// The server closed a new connection at once, as a TLS port does on plain text.
    pub(crate) const CLOSED_EARLY: Self = Self::new("tollgate::E102", Unavailable);

    /// The TLS handshake failed: a certificate is missing or not trusted, or the port speaks no TLS.
    pub(crate) const TLS: Self = Self::new("tollgate::E103", Misconfigured);

    /// The server did not answer the TLS handshake: it hangs, or the network is cut.
    pub(crate) const TLS_TIMEOUT: Self = Self::new("tollgate::E104", Timeout);

    /// The server rejects the user or the password, or wants one.
    pub(crate) const WRONG_PASSWORD: Self = Self::new("tollgate::E105", Misconfigured);

    /// The closure of `RedisStore::credentials` failed, panicked, or has not answered yet.
    ///
    /// Check the token service, and the right of this process to ask it.
    pub(crate) const NO_CREDENTIALS: Self = Self::new("tollgate::E106", Unavailable);

    /// The ACL does not grant the user a command or the names of the keys.
    pub(crate) const MISSING_RIGHT: Self = Self::new("tollgate::E107", Misconfigured);

    /// The server lacks a command, has renamed it, or refuses it in scripts.
    pub(crate) const UNKNOWN_COMMAND: Self = Self::new("tollgate::E108", Misconfigured);

    /// The server is a replica: the URL names one, or a failover made it one.
    pub(crate) const REPLICA: Self = Self::new("tollgate::E109", Unavailable);

    /// The server has reached `maxmemory` and evicts nothing.
    pub(crate) const OUT_OF_MEMORY: Self = Self::new("tollgate::E110", Full);

    /// Fewer replicas are in sync than the master wants for a write.
    pub(crate) const FEW_REPLICAS: Self = Self::new("tollgate::E111", Unavailable);

    /// The server takes no writes because it could not save its data.
    pub(crate) const NOT_SAVED: Self = Self::new("tollgate::E112", Unavailable);

    /// The server has just started and loads its data.
    pub(crate) const LOADING: Self = Self::new("tollgate::E113", Unavailable);

    /// Another script occupies the server.
    pub(crate) const BUSY: Self = Self::new("tollgate::E114", Unavailable);

    /// The server has as many connections as it allows.
    pub(crate) const MAX_CLIENTS: Self = Self::new("tollgate::E115", Unavailable);

    /// The server is one node of a cluster, and another has the key.
    pub(crate) const CLUSTER_NODE: Self = Self::new("tollgate::E116", Misconfigured);

    /// The cluster does not serve some slots: a master has failed, or slots are moving.
    pub(crate) const CLUSTER_DOWN: Self = Self::new("tollgate::E117", Unavailable);

    /// A call had keys of several slots, because a proxy joins or moves calls.
    pub(crate) const CROSS_SLOT: Self = Self::new("tollgate::E118", Misconfigured);

    /// A check through the trait `Store` has keys in several slots of a cluster.
    ///
    /// Give the keys one hash tag, or check through `RateLimiter::check_all`.
    pub(crate) const SEVERAL_SLOTS: Self = Self::new("tollgate::E119", Unsupported);

    /// The clock of the server shows a calendar window that this process did not send.
    pub(crate) const CLOCKS_DIFFER: Self = Self::new("tollgate::E120", Unavailable);

    /// The server does not know a script that it was just sent.
    pub(crate) const UNKNOWN_SCRIPT: Self = Self::new("tollgate::E121", Misconfigured);

    /// A key of this prefix has a value that tollgate did not write.
    pub(crate) const WRONG_TYPE: Self = Self::new("tollgate::E122", Misconfigured);

    /// The server runs Lua only with a setting.
    pub(crate) const RESTRICTED_SCRIPTS: Self = Self::new("tollgate::E123", Misconfigured);

    /// A `RedisStore` was used outside of a tokio runtime.
    ///
    /// Call it from a task, or in `block_on`.
    pub(crate) const NO_RUNTIME: Self = Self::new("tollgate::E124", Misconfigured);

    /// A setting of a `RedisStore` was changed after its first clone or use.
    ///
    /// Set it right after `open`, or on a `fork()`.
    pub(crate) const IN_USE: Self = Self::new("tollgate::E125", Misconfigured);

    /// The server refuses TIME in scripts, and this process knows its time too badly for so short a lease of slots.
    ///
    /// Raise the lease of `Quota::in_flight`, or use a server closer by.
    pub(crate) const SHORT_LEASE: Self = Self::new("tollgate::E126", Misconfigured);

    /// A reply belongs to another call: the server or a proxy has lost a reply, or has sent one twice. The call may or may not
    /// have been executed. The store has replaced the connection.
    ///
    /// If it happens again, look for the proxy. Replace a connection that was given to `RedisStore::with_connection`.
    pub(crate) const OUT_OF_SYNC: Self = Self::new("tollgate::E127", Unavailable);
}

/// The codes of warnings. A warning about an error has the code of the error, unless it says more.
pub(crate) mod warning {
    /// `client_ip` trusts all addresses, so each client can invent its key.
    ///
    /// Trust only the networks of the proxies.
    pub(crate) const TRUSTS_EVERYONE: &str = "tollgate::W001";

    /// A trusted proxy sent a header without a readable address, so its clients are not told apart: they share one key.
    ///
    /// Make the proxy write IP addresses, or choose another header.
    pub(crate) const UNREADABLE_ADDRESS: &str = "tollgate::W002";

    /// A request passed fewer proxies than `hops` expects, so its client is not known: the key is the address of its peer.
    ///
    /// Lower `hops`, or let no request bypass a proxy.
    pub(crate) const FEWER_PROXIES: &str = "tollgate::W003";

    /// Requests come from a private address with a forwarding header: all clients of that proxy share one limit.
    ///
    /// Use `key::client_ip`.
    pub(crate) const BEHIND_PROXY: &str = "tollgate::W004";

    /// No request has a matched route, which `key::path` reads.
    ///
    /// Add the layer by `Router::layer` to the router with the routes. Where no route matches, as under tonic, read the
    /// URI by `key::from_fn`.
    pub(crate) const NO_ROUTE: &str = "tollgate::W005";

    /// No request has the extension that the key reads: the layer that inserts it runs later.
    ///
    /// With `Router::layer`, add that layer after the limit.
    pub(crate) const NO_EXTENSION: &str = "tollgate::W006";

    /// The key extractor cannot work as the server is set up, so requests get 500.
    ///
    /// Follow the text: most often the router is served without `ConnectInfo`.
    pub(crate) const NO_KEY: &str = "tollgate::W007";

    /// A quota with the limit 0 refuses every request.
    ///
    /// Raise it. For no limit, leave the quota out, or `disable` the layer.
    pub(crate) const LIMIT_OF_ZERO: &str = "tollgate::W008";

    /// A handler settles a request of cost 0, which was not charged.
    ///
    /// Charge at least 1 unit when the request arrives.
    pub(crate) const NOTHING_TO_SETTLE: &str = "tollgate::W009";

    /// A handler settles a level that its layer does not have, so the charge stays.
    ///
    /// Write the name as `RateLimiter::name` has it.
    pub(crate) const UNKNOWN_LEVEL: &str = "tollgate::W010";

    /// Two layers of a request share name, key and store, so it is charged twice.
    ///
    /// Name each, or remove one.
    pub(crate) const CHARGED_TWICE: &str = "tollgate::W011";

    /// A responder returned a stream, whose body is left out.
    ///
    /// Return a body in memory.
    pub(crate) const STREAMED_REJECTION: &str = "tollgate::W012";

    /// Usage beyond the limit is not counted, because the store cannot charge it.
    ///
    /// Take a store that charges beyond a limit, such as a `StoreOn`.
    pub(crate) const CHARGED_TO_LIMIT: &str = "tollgate::W014";

    /// Limiters of one name and store differ in quotas or keys, or have the default name: they share counts.
    ///
    /// Name each limiter, or use one with `quotas_for`.
    pub(crate) const SHARED_NAME: &str = "tollgate::W015";

    /// Limiters of one name have different leases, so they count apart.
    ///
    /// Give both the same lease.
    pub(crate) const LEASES_DIFFER: &str = "tollgate::W016";

    /// An upstream has paused a key, and the store cannot tell other processes.
    ///
    /// Look up the error in the text.
    pub(crate) const PAUSE_NOT_SHARED: &str = "tollgate::W017";

    /// A key was refused too often and is not blocked: its limiter or the store has too many blocks.
    ///
    /// Unblock keys, or block after more refusals.
    pub(crate) const NO_ROOM_TO_BLOCK: &str = "tollgate::W018";

    /// Refusals are not counted, so no key is blocked.
    ///
    /// Look up the error in the text.
    pub(crate) const REFUSALS_NOT_COUNTED: &str = "tollgate::W019";

    /// A server refuses TIME in scripts, so this process tells each script the time.
    ///
    /// Nothing, if the clocks agree: see [rented servers](crate::guide::rented_servers).
    #[cfg(feature = "redis")]
    pub(crate) const NO_TIME_IN_SCRIPTS: &str = "tollgate::W020";

    /// A connection keeps its last credentials, because the closure or the server gave no others.
    ///
    /// Look up the error in the text before they expire.
    #[cfg(feature = "redis")]
    pub(crate) const OLD_CREDENTIALS: &str = "tollgate::W021";

    /// The block list was not refreshed three times in a row, so newer blocks are unknown here.
    ///
    /// Look up the error in the text.
    pub(crate) const STALE_BLOCK_LIST: &str = "tollgate::W022";

    /// A `MemoryStore` has `max_keys` keys near their limits, so new keys share counts by network.
    ///
    /// Raise `max_keys` if the keys belong to real clients.
    pub(crate) const MEMORY_FULL: &str = "tollgate::W023";

    /// The address of a client is not known: no trusted proxy names it, or the server does not provide the peer. So
    /// nothing that depends on the address applies, such as an exemption.
    ///
    /// Nothing, if it is a health check. Else trust only the addresses of the proxies, or add their number with `hops`;
    /// serve the router with `ConnectInfo`.
    pub(crate) const NO_ADDRESS: &str = "tollgate::W024";

    /// A handler adds units to a reservation whose limiter holds none.
    ///
    /// Set `reserve_lease` on the limiter or its layer, or call `settle`.
    pub(crate) const NOTHING_IS_HELD: &str = "tollgate::W025";

    /// A limiter with a total reserves units as a charge: those of a process that dies stay charged for ever.
    ///
    /// Set `reserve_lease`.
    pub(crate) const TOTAL_RESERVED: &str = "tollgate::W026";
}
