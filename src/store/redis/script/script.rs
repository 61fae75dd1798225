//! The script: the files of `lua/`, joined, and how it is called.

use std::sync::{Arc, LazyLock};

use redis::{Arg, Cmd, RedisWrite};

const CLOCK: &str = include_str!("../../../../lua/clock.lua");

/// The files behind the clock: those that the scripts of counts have in common, of which each is run when
/// it is first needed, and the end of each script; then those of scripts that need no other file. A
/// function that a call does not use still takes as long as a twentieth of a command to make, and there
/// are dozens.
macro_rules! files {
    (needed: $($needed:literal)*; ends: $decide:literal $refund:literal $give:literal; alone: $block:literal $blocked:literal) => {
        /// The files by name.
        #[cfg(test)]
        const FILES: &[(&str, &str)] = &[
            ("clock", CLOCK),
            $(($needed, include_str!(concat!("../../../../lua/", $needed, ".lua"))),)*
            ($decide, DECIDE),
            ($refund, REFUND),
            ($give, GIVE),
            ($block, BLOCK),
            ($blocked, BLOCKED),
        ];

        const NEEDED: &str = concat!(
            "local function need(name)\n",
            $(
                "if name == '", $needed, "' then\n",
                include_str!(concat!("../../../../lua/", $needed, ".lua")),
                "end\n",
            )*
            "end\n",
        );
        const DECIDE: &str = include_str!(concat!("../../../../lua/", $decide, ".lua"));
        const REFUND: &str = include_str!(concat!("../../../../lua/", $refund, ".lua"));
        const GIVE: &str = include_str!(concat!("../../../../lua/", $give, ".lua"));
        const BLOCK: &str = include_str!(concat!("../../../../lua/", $block, ".lua"));
        const BLOCKED: &str = include_str!(concat!("../../../../lua/", $blocked, ".lua"));
    };
}

files!(
    needed:
        "sliding_log" "gcra" "fixed_window" "sliding_counter" "sliding_buckets" "sorted_set_log"
        "holes" "numbers" "tally" "tally_steps" "aligned" "tick" "settle" "log" "list" "push" "begin" "text" "several";
    ends: "decide" "refund" "give";
    alone: "block" "blocked"
);

/// The scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// Decides checks.
    pub(crate) decide: Script,
    /// Takes units back: seldom, so that it does not make the other longer.
    pub(crate) refund: Script,
    /// Has fewer units count: more seldom still.
    pub(crate) give: Script,
    /// Notes what is blocked.
    pub(crate) block: Script,
    /// Tells what is blocked.
    pub(crate) blocked: Script,
}

impl Scripts {
    /// Those of all stores.
    pub(crate) fn shared() -> Arc<Self> {
        static SCRIPTS: LazyLock<Arc<Scripts>> =
            LazyLock::new(|| Arc::new(Scripts::with_clock(CLOCK)));
        Arc::clone(&SCRIPTS)
    }

    /// The same bytes behind another clock.
    pub(crate) fn with_clock(clock: &str) -> Self {
        Self {
            decide: Script::new([clock, NEEDED, DECIDE].concat()),
            refund: Script::new([clock, NEEDED, REFUND].concat()),
            give: Script::new([clock, NEEDED, GIVE].concat()),
            block: Script::new([clock, BLOCK].concat()),
            blocked: Script::new([clock, BLOCKED].concat()),
        }
    }
}

/// A script and its hash, which is computed once.
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

    /// The head of the usual call: a server that has seen the script knows it by its hash. The keys
    /// and arguments are still to be written; there is room for so many, and for names of a length.
    pub(crate) fn call(&self, keys: usize, args: usize, name: usize) -> Cmd {
        const NUMBER: usize = 12;
        let bytes = self.hash.len() + keys * name + args * NUMBER;
        let mut call = Cmd::with_capacity(3 + keys + args, bytes);
        call.arg("EVALSHA").arg(&self.hash).arg(keys);
        call
    }

    /// The same call, which brings the script along and has the server remember it. EVAL rather than
    /// SCRIPT LOAD: one round trip, needs no further right, and goes where the keys are.
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::Scripts;
    use super::{DECIDE, FILES, GIVE, REFUND};
    use crate::store::redis::protocol::{
        ADMITTED_FIELDS, CALL_FIELDS, CALL_REPLY_FIELDS, ENTRY_REPLY_FIELDS, GIVE_COUNT_FIELDS,
        GIVE_FIELDS, PLAN_FIELDS, QUOTA_FIELDS, RECEIPT_FIELDS, REFUND_FIELDS, REFUSED_FIELDS,
        RUN_FIELDS,
    };

    /// The lines `field   text` of a header, by field.
    fn header(file: &str) -> BTreeMap<&str, Vec<&str>> {
        let (header, _) = file
            .strip_prefix("--[[\n")
            .unwrap()
            .split_once("]]\n")
            .unwrap();
        let mut fields = BTreeMap::<_, Vec<_>>::new();
        for line in header.lines() {
            if let Some((field, text)) = line.split_once("  ") {
                fields.entry(field).or_default().push(text.trim());
            }
        }
        fields
    }

    fn documented<'a>(
        fields: &BTreeMap<&str, Vec<&'a str>>,
        field: &str,
        of: &str,
    ) -> Vec<&'a str> {
        let lines = fields.get(field).unwrap();
        let list = lines.iter().find_map(|line| line.strip_prefix(of));
        list.unwrap()
            .trim_start_matches(':')
            .split(',')
            .map(str::trim)
            .collect()
    }

    fn commands(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_uppercase());
        words.filter(|word| word.len() > 2).collect()
    }

    #[test]
    fn every_file_says_what_it_is_and_takes() {
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
    fn the_header_of_decide_lists_the_fields_that_are_encoded_and_decoded() {
        let fields = header(DECIDE);
        let arguments = |of| documented(&fields, "ARGV", of);
        assert_eq!(arguments("call"), CALL_FIELDS);
        assert_eq!(arguments("plan"), PLAN_FIELDS);
        assert_eq!(arguments("quota"), QUOTA_FIELDS);
        assert_eq!(arguments("run"), RUN_FIELDS);
        let replied = |of| documented(&fields, "reply", of);
        assert_eq!(replied("call"), CALL_REPLY_FIELDS);
        assert_eq!(replied("entry"), ENTRY_REPLY_FIELDS);
        assert_eq!(replied("admitted"), ADMITTED_FIELDS);
        assert_eq!(replied("receipt"), RECEIPT_FIELDS);
        assert_eq!(replied("refused"), REFUSED_FIELDS);
        assert_eq!(documented(&header(REFUND), "ARGV", "count"), REFUND_FIELDS);
        let given = header(GIVE);
        assert_eq!(documented(&given, "ARGV", "call"), GIVE_FIELDS);
        assert_eq!(documented(&given, "ARGV", "count"), GIVE_COUNT_FIELDS);
    }

    #[test]
    fn the_scripts_read_as_many_arguments_as_their_headers_list() {
        let read = |text: &str| DECIDE.matches(text).count();
        let of_call = read("args[1]") + read("local at = 2\n");
        assert_eq!(of_call, 2 * CALL_FIELDS.len());
        // A plan is read at `at`, its quotas at the `at` behind it, a run at the `at` behind those.
        for of in [QUOTA_FIELDS.len(), PLAN_FIELDS.len(), RUN_FIELDS.len()] {
            assert_eq!(read(&format!("at = at + {of}\n")), 1, "{of}");
        }
        assert_eq!(REFUND.matches("ARGV[at").count(), REFUND_FIELDS.len());
        assert_eq!(GIVE.matches("ARGV[1]").count(), GIVE_FIELDS.len());
        assert_eq!(GIVE.matches("ARGV[at").count(), GIVE_COUNT_FIELDS.len());
    }

    #[test]
    fn headers_name_the_commands_that_are_called() {
        for (name, file) in FILES {
            // Also where pcall is given it.
            let file = &file.replace("call, '", "call('");
            let calls = file.split("call('").skip(1);
            let called: BTreeSet<_> = calls.map(|call| call.split('\'').next().unwrap()).collect();
            let documented = header(file).get("calls").unwrap().join(" ");
            assert_eq!(commands(&documented), called, "{name}");
        }
    }

    #[test]
    fn the_scripts_are_ascii_and_have_no_shebang() {
        let scripts = Scripts::shared();
        let Scripts {
            decide,
            refund,
            give,
            block,
            blocked,
        } = &*scripts;
        for script in [decide, refund, give, block, blocked] {
            assert!(script.text.is_ascii());
            assert!(!script.text.starts_with("#!"));
        }
    }
}
