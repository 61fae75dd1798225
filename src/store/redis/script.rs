//! The script: the files of `lua/`, joined, and how it is called.

use std::sync::{Arc, LazyLock};

use redis::Cmd;

use super::call::Call;

const CLOCK: &str = include_str!("../../../lua/clock.lua");

/// The files behind the clock, in the order in which they use each other: those that both scripts
/// have, and the end of each.
macro_rules! files {
    (shared: $($shared:literal)*; ends: $decide:literal $refund:literal) => {
        /// The files by name.
        #[cfg(test)]
        const FILES: &[(&str, &str)] = &[
            ("clock", CLOCK),
            $(($shared, include_str!(concat!("../../../lua/", $shared, ".lua"))),)*
            ($decide, DECIDE),
            ($refund, REFUND),
        ];

        const SHARED: &str = concat!($(include_str!(concat!("../../../lua/", $shared, ".lua"))),*);
        const DECIDE: &str = include_str!(concat!("../../../lua/", $decide, ".lua"));
        const REFUND: &str = include_str!(concat!("../../../lua/", $refund, ".lua"));
    };
}

files!(
    shared:
        "arithmetic" "log" "sliding_log" "sorted_set_log"
        "tally" "sliding_counter" "sliding_buckets" "fixed_window" "gcra" "algorithms";
    ends: "decide" "refund"
);

/// The scripts of a store.
#[derive(Debug)]
pub(super) struct Scripts {
    /// Decides checks.
    pub(super) decide: Script,
    /// Takes units back: seldom, so that it does not make the other longer.
    pub(super) refund: Script,
}

impl Scripts {
    /// Those of all stores.
    pub(super) fn shared() -> Arc<Self> {
        static SCRIPTS: LazyLock<Arc<Scripts>> =
            LazyLock::new(|| Arc::new(Scripts::with_clock(CLOCK)));
        Arc::clone(&SCRIPTS)
    }

    /// The same bytes behind another clock.
    pub(super) fn with_clock(clock: &str) -> Self {
        Self {
            decide: Script::new([clock, SHARED, DECIDE].concat()),
            refund: Script::new([clock, SHARED, REFUND].concat()),
        }
    }
}

/// A script and its hash, which is computed once.
#[derive(Debug)]
pub(super) struct Script {
    text: String,
    hash: String,
}

impl Script {
    fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// The usual call: a server that has seen the script knows it by its hash.
    pub(super) fn by_hash(&self, call: &Call) -> Cmd {
        command("EVALSHA", &self.hash, call)
    }

    /// The call that brings the script along, and has the server remember it. EVAL rather than
    /// SCRIPT LOAD: one round trip, needs no further right, and goes where the keys are.
    pub(super) fn by_text(&self, call: &Call) -> Cmd {
        command("EVAL", &self.text, call)
    }
}

fn command(name: &str, script: &str, call: &Call) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script);
    call.write_to(&mut command);
    command
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::call::{
        CHECK_FIELDS, CHECK_REPLY_FIELDS, QUOTA_FIELDS, REFUND_FIELDS, REPLY_FIELDS,
    };
    use super::{DECIDE, FILES, REFUND};

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
        assert_eq!(documented(&fields, "ARGV", "check"), CHECK_FIELDS);
        assert_eq!(documented(&fields, "ARGV", "quota"), QUOTA_FIELDS);
        assert_eq!(documented(&fields, "reply", "check"), CHECK_REPLY_FIELDS);
        assert_eq!(documented(&fields, "reply", "quota"), REPLY_FIELDS);
        assert_eq!(documented(&header(REFUND), "ARGV", "count"), REFUND_FIELDS);
    }

    #[test]
    fn decide_reads_as_many_arguments_as_its_header_lists() {
        let read = |text: &str| DECIDE.matches(text).count();
        // The check is read at `at`, its quotas at the `at` behind it.
        assert_eq!(read("ARGV[at"), CHECK_FIELDS.len() + QUOTA_FIELDS.len());
        assert_eq!(read(&format!("at = at + {}\n", CHECK_FIELDS.len())), 1);
        assert_eq!(read(&format!("at = at + {}\n", QUOTA_FIELDS.len())), 1);
        assert_eq!(read("local reply = { now }"), CHECK_REPLY_FIELDS.len());
        assert_eq!(read("reply[#reply + 1] ="), REPLY_FIELDS.len());
        assert_eq!(REFUND.matches("ARGV[at").count(), REFUND_FIELDS.len());
    }

    #[test]
    fn headers_name_the_commands_that_are_called() {
        for (name, file) in FILES {
            let calls = file.split("redis.call('").skip(1);
            let called: BTreeSet<_> = calls.map(|call| call.split('\'').next().unwrap()).collect();
            let documented = header(file).get("calls").unwrap().join(" ");
            assert_eq!(commands(&documented), called, "{name}");
        }
    }

    #[test]
    fn the_scripts_are_ascii_and_have_no_shebang() {
        let scripts = super::Scripts::shared();
        for script in [&scripts.decide, &scripts.refund] {
            assert!(script.text.is_ascii());
            assert!(!script.text.starts_with("#!"));
        }
    }
}
