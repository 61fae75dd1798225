//! A world before it begins: which faults and which clients it has.

use std::collections::BTreeSet;
use std::fmt;

use crate::planted::Planted;
use crate::random::Random;

/// Declares an enum with a name for each variant.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name, as in the arguments of the program.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

named! {
    /// A kind of fault. Each happens in half of the worlds, so that some worlds have one kind alone; where all clients reserve
    /// units, in a third.
    FaultKind {
        /// A process is killed, and another one starts in its place.
        Kill = "kill",
        /// A process stands still, for up to 7 s.
        Stop = "stop",
        /// A connection is cut. Half of what is under way is lost.
        Cut = "cut",
        /// A process is cut off from the server for some seconds, and its calls hang.
        Partition = "partition",
        /// The server hangs.
        Freeze = "freeze",
        /// The server restarts, and has forgotten the scripts.
        Restart = "restart",
        /// Some restarts lose the data.
        DataLoss = "data-loss",
        /// The clock of the server steps, by up to 2 s or an hour; where all clients reserve units, by up to two hours.
        ClockStep = "clock-step",
        /// Messages take up to 250 ms.
        SlowNetwork = "slow-network",
        /// Messages are lost.
        LostMessages = "lost-messages",
        /// Messages about slots or reserved units arrive a second time, up to a lease later.
        RepeatedMessages = "repeated-messages",
        /// The clocks of processes are up to 5 % slow or fast.
        ClockSkew = "clock-skew",
        /// The server has no memory left for some time.
        FullMemory = "full-memory",
        /// Another program overwrites a key.
        Stranger = "stranger",
        /// The server refuses every command: it loads its data, has become a replica, or its user may not run scripts.
        Refusals = "refusals",
        /// A call gets the reply to an earlier one.
        MixedReplies = "mixed-replies",
    }
}

named! {
    /// The work of clients.
    ClientKind {
        /// Check one key by each algorithm.
        Checks = "checks",
        /// Check a busy key with a lease.
        Leases = "leases",
        /// Check several keys at once.
        Levels = "levels",
        /// Wait for units.
        Waits = "waits",
        /// Hold slots.
        Slots = "slots",
        /// Hold slots and charge a rate.
        Jobs = "jobs",
        /// Charge, settle, refund, credit and reset.
        Changes = "changes",
        /// Block keys, and are blocked.
        Blocks = "blocks",
        /// Are paused by an upstream.
        Upstreams = "upstreams",
        /// Go on without the store, by a policy.
        Policies = "policies",
        /// Reserve units of a budget, and check it without a permit.
        Reservations = "reservations",
    }
}

named! {
    /// The clients of a world: of all kinds, or those alone that show what the others hide.
    Cast {
        /// Clients of all kinds.
        All = "All",
        /// Clients that hold slots: more permits are lost.
        SlotsAlone = "SlotsAlone",
        /// Clients of a busy key with a lease: units are used at the end of their lease.
        LeasesAlone = "LeasesAlone",
        /// Clients that reserve units: more of them are killed, and stopped for longer.
        ReservationsAlone = "ReservationsAlone",
    }
}

impl Cast {
    const fn from_seed(seed: u64) -> Self {
        match seed % 8 {
            3 | 7 => Self::SlotsAlone,
            5 => Self::LeasesAlone,
            1 => Self::ReservationsAlone,
            _ => Self::All,
        }
    }

    const fn clients(self) -> &'static [ClientKind] {
        match self {
            Self::All => ClientKind::ALL,
            Self::SlotsAlone => &[ClientKind::Slots, ClientKind::Jobs],
            Self::LeasesAlone => &[ClientKind::Leases],
            Self::ReservationsAlone => &[ClientKind::Reservations],
        }
    }
}

/// A world before it begins. Equal plans make equal worlds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all that is random.
    pub seed: u64,
    /// How many processes there are.
    pub processes: usize,
    /// How long clients go on, in milliseconds. Faults end three seconds before.
    pub load: u64,
    /// The faults that happen.
    pub faults: BTreeSet<FaultKind>,
    /// The clients of each process.
    pub clients: BTreeSet<ClientKind>,
    /// A rule of the code that is left out, for which the world has to find a promise that breaks.
    pub planted: Option<&'static Planted>,
    /// The limiter and the key whose events are kept, such as `slots,x`.
    pub traced: Option<String>,
    /// Whether the branches of the scripts are counted.
    pub counts_branches: bool,
}

impl Plan {
    /// Returns the plan of a seed. Thirteen worlds of 64 have no faults; every fourth has only clients that hold slots,
    /// every eighth only clients with a lease, and every eighth only clients that reserve units.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed, 1);
        let is_calm = seed % 8 == 0 || seed % 16 == 7 || seed % 64 == 9;
        let cast = Cast::from_seed(seed);
        let reserves = cast == Cast::ReservationsAlone;
        let one_of = if reserves { 3 } else { 2 };
        let faults = FaultKind::ALL.iter().copied();
        let faults = faults.filter(|_| random.one_in(one_of) && !is_calm);
        let faults = faults.collect();
        let clients = cast.clients();
        Self {
            seed,
            processes: 3,
            load: if reserves { 24_000 } else { 12_000 },
            faults,
            clients: clients.iter().copied().collect(),
            planted: None,
            traced: None,
            counts_branches: false,
        }
    }

    /// Returns the cast of the seed. It stays the same if arguments leave clients out.
    #[must_use]
    pub const fn cast(&self) -> Cast {
        Cast::from_seed(self.seed)
    }

    /// Returns whether this fault happens.
    #[must_use]
    pub fn has(&self, fault: FaultKind) -> bool {
        self.faults.contains(&fault)
    }

    /// Returns the arguments by which the program runs this plan again.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let faults: Vec<&str> = self.faults.iter().map(|fault| fault.name()).collect();
        let clients: Vec<&str> = self.clients.iter().map(|client| client.name()).collect();
        let mut arguments = vec![
            "replay".to_owned(),
            self.seed.to_string(),
            format!("--millis={}", self.load),
            format!("--faults={}", faults.join(",")),
            format!("--clients={}", clients.join(",")),
        ];
        arguments.extend(
            self.planted
                .map(|planted| format!("--planted={}", planted.name)),
        );
        arguments.extend(self.traced.as_ref().map(|key| format!("--trace={key}")));
        arguments.extend(self.counts_branches.then(|| "--branches".to_owned()));
        arguments
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tests/run simulation {}", self.arguments().join(" "))
    }
}
