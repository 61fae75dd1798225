//! The scripts of a store, and how they are called.

use std::sync::{Arc, LazyLock};

use redis::{Arg, Cmd, RedisWrite};

/// The text of a file in `lua/`.
macro_rules! file {
    ($name:literal) => {
        include_str!(concat!("../../../../lua/", $name, ".lua"))
    };
}

/// The text of a file behind a line with its path, by which a reader of a script finds the file.
macro_rules! marked {
    ($name:literal) => {
        concat!("-- lua/", $name, ".lua\n", file!($name))
    };
}

/// Joins the files behind the clock. `modules` are common to the scripts of counts and become branches
/// of one function `require`, since a function that a call does not use still takes a twentieth of a
/// command to create, and there are dozens. One of `ends` follows them. Those of `alone` follow
/// the clock and, if they change the block list, `list`.
macro_rules! files {
    (
        modules: $($module:literal)*;
        ends: $decide:literal $refund:literal $credit:literal;
        list: $list:literal;
        alone: $block:literal $blocked:literal $refusals:literal
    ) => {
        /// The files by name.
        #[cfg(test)]
        const FILES: &[(&str, &str)] = &[
            ("clock", file!("clock")),
            $(($module, file!($module)),)*
            ($decide, file!($decide)),
            ($refund, file!($refund)),
            ($credit, file!($credit)),
            ($list, file!($list)),
            ($block, file!($block)),
            ($blocked, file!($blocked)),
            ($refusals, file!($refusals)),
        ];

        const CLOCK: &str = marked!("clock");
        const MODULES: &str = concat!(
            "local function require(name)\n",
            $("if name == '", $module, "' then\n", marked!($module), "end\n",)*
            "end\n",
        );
        const DECIDE: &str = marked!($decide);
        const REFUND: &str = marked!($refund);
        const CREDIT: &str = marked!($credit);
        const BLOCK: &str = concat!(marked!($list), marked!($block));
        const BLOCKED: &str = marked!($blocked);
        const REFUSALS: &str = concat!(marked!($list), marked!($refusals));
    };
}

files!(
    modules:
        "quota" "fast_path" "grant" "sliding_log" "runs" "fast_path_counter" "gcra" "fixed_window" "calendar_window" "sliding_counter" "sliding_buckets"
        "fast_path_counters" "fast_path_several" "aligned" "arithmetic" "levels" "refused_levels" "sorted_set_log" "multi_quota" "failure"
        "subject" "value" "journal" "holes" "counter" "judge_log" "packed_log" "piece" "rotation" "segments" "set_ttl" "format_integer"
        "give_back";
    ends: "decide" "refund" "credit";
    list: "block_list";
    alone: "block" "blocked" "refusals"
);

static SHARED: LazyLock<Arc<Scripts>> = LazyLock::new(|| Arc::new(Scripts::with_clock(CLOCK)));

/// The scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// Decides checks.
    pub(crate) decide: Script,
    /// Gives units of a check back. Apart from `decide`, which it would make longer.
    pub(crate) refund: Script,
    /// Credits units to a key.
    pub(crate) credit: Script,
    /// Blocks or unblocks a key.
    pub(crate) block: Script,
    /// Lists the blocked keys.
    pub(crate) blocked: Script,
    /// Counts refusals, and blocks keys.
    pub(crate) refusals: Script,
}

impl Scripts {
    /// Returns the scripts that all stores share.
    pub(crate) fn shared() -> Arc<Self> {
        Arc::clone(&SHARED)
    }

    /// Returns the texts of the shared scripts by name, first that of `decide`.
    pub(crate) fn texts() -> [(&'static str, &'static str); 6] {
        let Self {
            decide,
            refund,
            credit,
            block,
            blocked,
            refusals,
        } = &**SHARED;
        [
            ("decide", &decide.text),
            ("refund", &refund.text),
            ("credit", &credit.text),
            ("block", &block.text),
            ("blocked", &blocked.text),
            ("refusals", &refusals.text),
        ]
    }

    /// Puts the same files behind another clock, for tests.
    pub(crate) fn with_clock(clock: &str) -> Self {
        Self {
            decide: Script::new([clock, MODULES, DECIDE].concat()),
            refund: Script::new([clock, MODULES, REFUND].concat()),
            credit: Script::new([clock, MODULES, CREDIT].concat()),
            block: Script::new([clock, BLOCK].concat()),
            blocked: Script::new([clock, BLOCKED].concat()),
            refusals: Script::new([clock, REFUSALS].concat()),
        }
    }
}

/// A script with its hash, which is computed once.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    hash: String,
}

impl Script {
    fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Begins an EVALSHA, with room for so many keys of a length and so many arguments. The caller
    /// appends both.
    pub(crate) fn call(&self, keys: usize, args: usize, key_length: usize) -> Cmd {
        const NUMBER_LENGTH: usize = 12;
        let bytes = self.hash.len() + keys * key_length + args * NUMBER_LENGTH;
        let mut call = Cmd::with_capacity(3 + keys + args, bytes);
        call.arg("EVALSHA").arg(&self.hash).arg(keys);
        call
    }

    /// Turns a call into an EVAL with the text, which the server caches. EVAL rather than SCRIPT LOAD: it
    /// takes one round trip, needs no further permission, and is routed by its keys.
    pub(crate) fn by_text(&self, call: &Cmd) -> Cmd {
        let mut by_text = redis::cmd("EVAL");
        by_text.arg(&self.text);
        for arg in call.args_iter().skip(2) {
            if let Arg::Simple(bytes) = arg {
                by_text.write_arg(bytes);
            }
        }
        by_text
    }
}

/// The text of a file in `lua/`.
#[cfg(test)]
pub(crate) fn source(name: &str) -> &'static str {
    let found = FILES.iter().find(|(file, _)| *file == name);
    found.unwrap().1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::header::header;
    use super::*;

    fn commands(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_uppercase());
        words.filter(|word| word.len() > 2).collect()
    }

    #[test]
    fn every_file_has_a_complete_header() {
        for (name, file) in FILES {
            assert!(file.starts_with(&format!("--[[\n{name}: ")), "{name}");
            let fields = header(file);
            for field in ["KEYS", "ARGV", "reply", "calls", "server"] {
                assert!(fields.contains_key(field), "{name} lacks {field}");
            }
            assert!(file.ends_with('\n'), "{name}");
        }
    }

    #[test]
    fn headers_name_the_commands_that_are_called() {
        for (name, file) in FILES {
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
