//! The scripts of a store, and how they are called.

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use redis::{Arg, Cmd, RedisWrite};

use crate::quota::Algorithm;
use crate::store::redis::protocol::CallNumber;

/// Joins files in `lua/`, each behind a line with its path, by which a reader of a script finds the file.
macro_rules! joined {
    ($($name:literal)*) => {
        concat!($("-- lua/", $name, ".lua\n", include_str!(concat!("../../../../lua/", $name, ".lua"))),*)
    };
}

const CLOCK: &str = joined!("clock");
const CLOCK_ARGUMENT: &str = joined!("clock_argument");

static SHARED: LazyLock<Arc<Scripts>> = LazyLock::new(|| Arc::new(Scripts::with_clock(CLOCK)));

/// Declares the scripts of a store, each with the files that follow the clock.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident: $($file:literal)*;)*) => {
        /// The scripts of a store.
        pub(crate) struct Scripts {
            $($(#[$doc])* pub(crate) $name: Script,)*
        }

        impl Scripts {
            /// Puts the same files behind another clock, for tests.
            pub(crate) fn with_clock(clock: &str) -> Self {
                let clock: Arc<str> = clock.into();
                Self { $($name: Script::new(&clock, joined!($($file)*)),)* }
            }

            /// Returns the texts of the shared scripts by name, first those that decide; then the same behind the clock of
            /// the caller.
            pub(crate) fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
                let own = [$((stringify!($name), &*SHARED.$name.by_clock().text)),*];
                let by_argument = [$((
                    concat!(stringify!($name), "_clock_argument"),
                    &*SHARED.$name.by_argument().text,
                )),*];
                own.into_iter().chain(by_argument)
            }
        }
    };
}

// The loop of an algorithm stands before all functions: if it leaves no entry, the script returns and none is created.
scripts! {
    /// Decides checks of this algorithm, as the next five do of theirs.
    log: "call" "log_loop" "prelude" "shares" "log" "decide";
    fixed_window: "call" "counters_loop" "prelude" "counters" "fixed_window" "decide";
    sliding_counter: "call" "counters_loop" "prelude" "counters" "sliding_counter" "decide";
    gcra: "call" "counters_loop" "prelude" "counters" "gcra" "decide";
    sorted_set_log: "call" "prelude" "sorted_set_log" "decide";
    total: "call" "prelude" "counters" "total" "decide";
    /// Decides checks of several algorithms.
    mixed: "call" "prelude" "shares" "log" "counters" "fixed_window" "sliding_counter" "gcra" "total"
        "sorted_set_log" "decide";
    /// Decides checks of slots in flight, alone or beside logs.
    in_flight: "call" "prelude" "shares" "log" "holds" "decide";
    /// Decides checks of any algorithms in a call that also has slots in flight.
    mixed_in_flight: "call" "prelude" "shares" "log" "counters" "fixed_window" "sliding_counter" "gcra" "total"
        "sorted_set_log" "holds" "decide";
    /// Decides checks of any algorithms in a call that also has units that processes hold.
    holds: "call" "prelude" "shares" "log" "counters" "fixed_window" "sliding_counter" "gcra" "total"
        "sorted_set_log" "holds" "beside_held" "decide";
    /// Gives units of a check back, credits units to a key, or forgets its counts.
    refund: "call" "prelude" "shares" "log" "log_refund" "counters" "fixed_window" "sliding_counter" "gcra" "total"
        "counters_refund" "gcra_refund" "sorted_set_log" "sorted_set_refund" "refund";
    /// Blocks or unblocks a key.
    block: "block";
    /// Lists the blocked keys.
    blocked: "blocked";
    /// Lists the processes that hold slots of a key.
    holders: "holders";
}

impl Scripts {
    pub(crate) fn shared() -> Arc<Self> {
        Arc::clone(&SHARED)
    }

    /// Returns the script that decides checks of this algorithm, or of several. That of slots in flight decides logs, too, and
    /// that of held units all.
    pub(crate) fn decide(&self, algorithm: Option<Algorithm>) -> &Script {
        match algorithm {
            Some(Algorithm::SlidingLog | Algorithm::SlidingBuckets(_)) => &self.log,
            Some(Algorithm::FixedWindow) => &self.fixed_window,
            Some(Algorithm::SlidingCounter) => &self.sliding_counter,
            Some(Algorithm::Gcra) => &self.gcra,
            Some(Algorithm::SortedSetLog) => &self.sorted_set_log,
            Some(Algorithm::Total) => &self.total,
            Some(Algorithm::InFlight) => &self.in_flight,
            Some(Algorithm::Held) => &self.holds,
            None => &self.mixed,
        }
    }
}

// Without the texts, which are long.
impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripts")
    }
}

/// A script, behind the clock of the server and behind that of the caller. Each text is joined and hashed at its first call:
/// a process calls few of them, and hashing all takes 22 million instructions.
pub(crate) struct Script {
    clock: Arc<str>,
    files: &'static str,
    by_clock: OnceLock<Text>,
    by_argument: OnceLock<Text>,
}

/// A call of a script: the command, and the number that its reply has to echo.
pub(crate) struct ScriptCall {
    pub(crate) command: Cmd,
    pub(crate) number: CallNumber,
}

/// A text with its hash.
struct Text {
    text: String,
    hash: String,
}

impl Text {
    fn new(clock: &str, files: &str) -> Self {
        let text = [clock, files].concat();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

impl Script {
    fn new(clock: &Arc<str>, files: &'static str) -> Self {
        Self {
            clock: Arc::clone(clock),
            files,
            by_clock: OnceLock::new(),
            by_argument: OnceLock::new(),
        }
    }

    fn by_clock(&self) -> &Text {
        self.by_clock
            .get_or_init(|| Text::new(&self.clock, self.files))
    }

    fn by_argument(&self) -> &Text {
        self.by_argument
            .get_or_init(|| Text::new(CLOCK_ARGUMENT, self.files))
    }

    /// Begins an EVALSHA, with room for so many keys of a length and so many arguments. The caller
    /// appends both, with the number of the call among the arguments.
    pub(crate) fn call(&self, keys: usize, args: usize, key_length: usize) -> ScriptCall {
        const NUMBER_LENGTH: usize = 12;
        let hash = &self.by_clock().hash;
        let bytes = hash.len() + keys * key_length + args * NUMBER_LENGTH;
        let mut command = Cmd::with_capacity(3 + keys + args, bytes);
        command.arg("EVALSHA").arg(hash).arg(keys);
        ScriptCall {
            command,
            number: CallNumber::next(),
        }
    }

    /// Turns a call into one that tells the script the time, in microseconds since 1970.
    pub(crate) fn at_time(&self, call: &ScriptCall, time: u64) -> ScriptCall {
        let mut command = copied(&call.command, "EVALSHA", &self.by_argument().hash);
        command.arg(time);
        ScriptCall { command, ..*call }
    }

    /// Turns a call into an EVAL with the text, which the server caches. EVAL rather than SCRIPT LOAD: it
    /// takes one round trip, needs no further permission, and is routed by its keys.
    pub(crate) fn by_text(&self, call: &ScriptCall) -> Cmd {
        let called = call.command.args_iter().nth(1);
        let by_argument = self.by_argument.get();
        let by_argument =
            by_argument.filter(|text| called == Some(Arg::Simple(text.hash.as_bytes())));
        let text = by_argument.unwrap_or_else(|| self.by_clock());
        copied(&call.command, "EVAL", &text.text)
    }
}

/// Tries TIME in a script: the reply is the refusal, or an empty text. Some servers run no script without a key.
pub(crate) fn time_trial(key: &str) -> Cmd {
    let mut trial = redis::cmd("EVAL");
    trial.arg("return redis.pcall('TIME').err or ''");
    trial.arg(1).arg(key);
    trial
}

/// Copies the keys and arguments of a call.
fn copied(call: &Cmd, command: &str, script: &str) -> Cmd {
    let mut copy = redis::cmd(command);
    copy.arg(script);
    for arg in call.args_iter().skip(2) {
        if let Arg::Simple(bytes) = arg {
            copy.write_arg(bytes);
        }
    }
    copy
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::header::{header, source};
    use super::*;

    /// The names and the texts of the files in `lua/`.
    fn files() -> Vec<(String, String)> {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let scripts = names.filter_map(|name| Some(name.strip_suffix(".lua")?.to_owned()));
        scripts.map(|name| (name.clone(), source(&name))).collect()
    }

    fn commands(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_uppercase());
        words.filter(|word| word.len() > 2).collect()
    }

    #[test]
    fn every_file_has_a_complete_header() {
        for (name, file) in files() {
            assert!(file.starts_with(&format!("--[[\n{name}: ")), "{name}");
            let fields = header(&file);
            for field in ["KEYS", "ARGV", "reply", "calls", "server"] {
                assert!(fields.contains_key(field), "{name} lacks {field}");
            }
            assert!(file.ends_with('\n'), "{name}");
        }
    }

    #[test]
    fn headers_name_the_commands_that_are_called() {
        for (name, file) in files() {
            // Calls through `pcall(call, '…')` too.
            let file = &file.replace("call, '", "call('");
            let calls = file.split("call('").skip(1);
            let called: BTreeSet<_> = calls.map(|call| call.split('\'').next().unwrap()).collect();
            let documented = header(file).get("calls").unwrap().join(" ");
            assert_eq!(commands(&documented), called, "{name}");
        }
    }

    #[test]
    fn the_scripts_are_ascii_and_have_no_shebang() {
        for (_, text) in Scripts::texts() {
            assert!(text.is_ascii());
            assert!(!text.starts_with("#!"));
        }
    }
}
