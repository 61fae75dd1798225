//! Planted faults: rules of the code or of a script that are left out, for each of which a world has to find a promise that
//! breaks.

use tollgate::RedisStore;
use tollgate::planted::plant as plant_in_code;

use crate::world::Cast;

/// A rule that is left out.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    /// As in the arguments of the program; of a rule of the models, its name there.
    pub name: &'static str,
    /// What is different.
    pub what: &'static str,
    /// Which worlds show it.
    pub(crate) shown_by: Cast,
    change: Change,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    /// In the code, behind the cfg of a simulation.
    Code,
    /// In a script: a text, and what stands in its place.
    Script(&'static str, &'static str),
}

impl Planted {
    const fn code(name: &'static str, what: &'static str) -> Self {
        Self {
            name,
            what,
            shown_by: Cast::All,
            change: Change::Code,
        }
    }

    const fn script(
        name: &'static str,
        what: &'static str,
        rule: &'static str,
        other: &'static str,
    ) -> Self {
        Self {
            name,
            what,
            shown_by: Cast::All,
            change: Change::Script(rule, other),
        }
    }

    /// Shows the fault in worlds with slots alone.
    const fn of_slots(mut self) -> Self {
        self.shown_by = Cast::SlotsAlone;
        self
    }

    /// Shows the fault in worlds with leases alone.
    const fn of_leases(mut self) -> Self {
        self.shown_by = Cast::LeasesAlone;
        self
    }

    /// Returns whether the rule is where it is left out: a script may have changed.
    pub(crate) fn is_current(&self) -> bool {
        match self.change {
            Change::Code => true,
            Change::Script(rule, _) => {
                let mut scripts = RedisStore::scripts();
                scripts.any(|(_, text)| text.contains(rule))
            }
        }
    }

    /// Returns the planted fault of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|planted| planted.name == name)
    }
}

/// Leaves the rule out of the code of this process.
pub(crate) fn plant(planted: Option<&'static Planted>) {
    if let Some(planted) = planted
        && matches!(planted.change, Change::Code)
    {
        plant_in_code(planted.name);
    }
}

/// Leaves the rule out of a script that has it.
pub(crate) fn replaced(planted: Option<&Planted>, script: &str) -> String {
    match planted.map(|planted| planted.change) {
        Some(Change::Script(rule, other)) => script.replace(rule, other),
        Some(Change::Code) | None => script.to_owned(),
    }
}

/// All of them.
pub const ALL: &[Planted] = &[
    // Slots in flight.
    Planted::script(
        "NoSequence",
        "a message that is older than the entry is taken in",
        "list.sequence < sequence and 2 or 0\n        base = list.sequence > sequence and base or slots",
        "0",
    )
    .of_slots(),
    Planted::script(
        "SecondCheckRestates",
        "the second check of a message states again what is held",
        "base = list.sequence > sequence and base or slots",
        "base = list.sequence < sequence and slots or base",
    )
    .of_slots(),
    Planted::script(
        "Differences",
        "a message adds what it states to the entry",
        "base = list.sequence > sequence and base or slots",
        "base = slots",
    )
    .of_slots(),
    Planted::script(
        "RefusalWritesNothing",
        "a refusal does not renew the entry of its holder",
        "if list.is_stated > 0 and note < 2 then",
        "if false then",
    )
    .of_slots(),
    Planted::script(
        "EmptyEntryRemoved",
        "an entry with 0 slots is removed",
        "  write(number, others .. entry, max(longest, list.lease))",
        "  write(number, slots == 0 and others or others .. entry, max(longest, list.lease))",
    )
    .of_slots(),
    Planted::script(
        "NoExpiry",
        "entries do not end",
        "last = ends < last and ends or last",
        "last = ends < last and max(ends, now + 1) or last",
    )
    .of_slots(),
    Planted::script(
        "EntriesEndEarly",
        "the last 1.5 s of an entry do not count",
        "if is_other and last > now then",
        "if is_other and last > now + 1500000 then",
    )
    .of_slots(),
    Planted::script(
        "NoClamp",
        "the end of an entry is not clamped to its lease",
        "last = ends < last and ends or last",
        "last = ends",
    )
    .of_slots(),
    Planted::script(
        "ClampNotWritten",
        "a refusal does not write what it has clamped",
        "  if is_changed then\n    write(number, others .. own, max(longest, own_lease))\n  end",
        "",
    )
    .of_slots(),
    Planted::script(
        "ClampToLeaseOfAsker",
        "ends are clamped to half the lease of the process that asks",
        "local last, is_other = now + 1000 * lease, holder ~= list.holder",
        "local last, is_other = now + 500 * list.lease, holder ~= list.holder",
    )
    .of_slots(),
    Planted::code("LateReplyGrants", "a reply that comes too late grants")
    .of_slots(),
    Planted::code("LossNotFinal", "a lost permit is revived by a renewal")
    .of_slots(),
    Planted::code("LostNotStated", "lost permits are not stated")
    .of_slots(),
    Planted::code(
        "WholeLease",
        "permits are valid for 1.3 of the lease, not for 0.8",
    )
    .of_slots(),
    Planted::code("ValidFromReply", "permits are valid from the reply on")
    .of_slots(),
    Planted::code("ValidWithoutReply", "a message without a reply renews")
    .of_slots(),
    Planted::code("SequenceRestarts", "the sequence starts anew when nothing is held")
    .of_slots(),
    Planted::code("NoSingleFlight", "a message is sent while another one of its key is under way")
    .of_slots(),
    Planted::code("LostReleasesHeld", "a lost permit that is dropped gives a slot of a later permit back")
    .of_slots(),
    // Waiting.
    Planted::code("NewcomerAsks", "a new call asks, although earlier ones wait")
    .of_slots(),
    Planted::code("LaterOvertakes", "a call that fits asks before the earlier ones"),
    Planted::code("GoneBlocks", "a call that gives up stays in its lines")
    .of_slots(),
    Planted::code("AskingIsIdle", "a call whose attempt takes a second loses its place")
    .of_slots(),
    // Leases of units.
    Planted::code(
        "NoWindowExtension",
        "charges count for the window, without the lease",
    ),
    Planted::code("WholeLeaseOfUnits", "units are used for twice their lease").of_leases(),
    Planted::code("UsedFromReply", "units are used from the reply on").of_leases(),
    Planted::code(
        "EndOfWindowIgnored",
        "units of an aligned window are used after its end",
    )
    .of_leases(),
    Planted::code(
        "ReturnStaysUsable",
        "units are returned, and used after that",
    )
    .of_leases(),
    Planted::code("ReturnSentAgain", "a return is sent with the units that were used, too").of_leases(),
    Planted::code("ReturnIntoLaterGrant", "a unit that is given back goes to the latest grant").of_leases(),
    Planted::script(
        "GrantNotCharged",
        "the store does not charge the units that a process takes in advance",
        "local units, before = cost * fitting + beyond, size",
        "local units, before = cost * fitting, size",
    ),
    Planted::script(
        "ReturnWithoutReceipt",
        "a return takes the newest units of a log, whatever charge they are of",
        "local time = list.bucket > 0 and list.position or charged.time",
        "local time = newest",
    ),
    // Counts, which the models do not have.
    Planted::script(
        "SecondLevelUnlimited",
        "only the first level of a check has a limit",
        "if cost * admitted > left then",
        "if index == 1 and cost * admitted > left then",
    ),
    Planted::script(
        "LogForgetsEarly",
        "the loop of logs forgets units 5 % early",
        "local edge, most, passed, below = now - window,",
        "local edge, most, passed, below = now - window * 0.95,",
    ),
    Planted::script(
        "WindowGrowsInLoop",
        "the loop of counters admits three times the limit",
        "if is_usual and count + cost <= limit then",
        "if is_usual and count + cost <= 3 * limit then",
    ),
    Planted::script(
        "KeyWithoutEnd",
        "a value that is written again lives forever",
        "call('SET', key, text, 'KEEPTTL')",
        "call('SET', key, text)",
    ),
    Planted::script(
        "BlockListStale",
        "the list of blocks keeps its version",
        "local version = math.max(math.floor(now / 1000), (head[2] or 0) + 1)",
        "local version = 1",
    ),
];
