//! The names of the tables and functions, and the statements that use them.

use std::fmt::Write;

use tollgate::Key;

/// The SQL of [`PostgresStore::sql`](crate::PostgresStore::sql), with names in braces.
const SCHEMA: &str = include_str!("sql/schema.sql");

/// The functions have a version in their names, so that processes of two versions of the crate can share the tables.
const FUNCTIONS: [&str; 7] = ["now", "read", "lock", "swap", "clean", "block", "blocked"];

/// Where the tables and functions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) schema: String,
    pub(crate) prefix: String,
    pub(crate) is_logged: bool,
}

/// The name of the row of a limiter and a key. Neither part contains a `|`, a space or a quote: a [`Key`] is stored as
/// letters, digits and some other characters, so that it needs no escape in a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowName(String);

impl RowName {
    pub(crate) fn new(limiter: &Key, key: &Key) -> Self {
        Self(format!("{}|{}", limiter.as_str(), key.as_str()))
    }
}

/// A row to be written, if nobody else has written it since it was read.
pub(crate) struct Swap<'a> {
    pub(crate) group: usize,
    pub(crate) name: &'a RowName,
    pub(crate) version: i64,
    /// Empty to write a row that counts nothing.
    pub(crate) value: Vec<u8>,
    pub(crate) expires_at: i64,
}

impl Names {
    /// Returns the SQL that creates the tables and functions.
    pub(crate) fn sql(&self) -> String {
        let mut sql = SCHEMA.to_owned();
        let mut replace = |name: &str, text: &str| sql = sql.replace(&format!("{{{name}}}"), text);
        let create_schema = match self.schema.as_str() {
            "public" => String::new(),
            schema => format!("CREATE SCHEMA IF NOT EXISTS {};\n", quoted(schema)),
        };
        replace("create_schema", &create_schema);
        replace("unlogged", if self.is_logged { "" } else { "UNLOGGED" });
        replace("counts", &self.name("counts"));
        replace("blocks", &self.name("blocks"));
        // An index is in the schema of its table.
        replace("expiry", &quoted(&format!("{}_expiry", self.prefix)));
        for function in FUNCTIONS {
            replace(function, &self.function(function));
        }
        sql
    }

    fn name(&self, name: &str) -> String {
        let (schema, name) = (quoted(&self.schema), format!("{}_{name}", self.prefix));
        format!("{schema}.{}", quoted(&name))
    }

    fn function(&self, name: &str) -> String {
        self.name(&format!("{name}_v1"))
    }

    /// Returns the statement that reads rows.
    pub(crate) fn read<'a>(&self, names: impl IntoIterator<Item = &'a RowName>) -> String {
        let (function, names) = (self.function("read"), joined(names));
        format!("SELECT version, value, now FROM {function}('{names}')")
    }

    /// Returns the statements that begin a transaction, lock rows and read them.
    pub(crate) fn lock<'a>(&self, names: impl IntoIterator<Item = &'a RowName>) -> String {
        let (function, names) = (self.function("lock"), joined(names));
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT version, value, now FROM {function}('{names}')"
        )
    }

    /// Returns the statement that writes rows.
    pub(crate) fn swap(&self, swaps: &[Swap<'_>], new_version: i64) -> String {
        let mut groups = String::new();
        let (mut versions, mut values, mut expiries) =
            (String::new(), String::new(), String::new());
        for (index, swap) in swaps.iter().enumerate() {
            let (comma, space) = if index == 0 { ("", "") } else { (",", " ") };
            // Writing to a text does not fail.
            let _ = write!(groups, "{comma}{}", swap.group);
            let _ = write!(versions, "{comma}{}", swap.version);
            let _ = write!(expiries, "{comma}{}", swap.expires_at);
            values.push_str(space);
            if swap.value.is_empty() {
                values.push('-');
            }
            for byte in &swap.value {
                let _ = write!(values, "{byte:02x}");
            }
        }
        let names = joined(swaps.iter().map(|swap| swap.name));
        let function = self.function("swap");
        format!(
            "SELECT lost FROM {function}('{{{groups}}}', '{names}', '{{{versions}}}', {new_version}, '{values}', \
             '{{{expiries}}}')"
        )
    }

    /// Returns the statement that removes expired rows.
    pub(crate) fn clean(&self, most: u32) -> String {
        format!("SELECT {}({most})", self.function("clean"))
    }

    /// Returns the statement that blocks or unblocks a key.
    pub(crate) fn block(
        &self,
        limiter: &Key,
        key: &Key,
        micros: i64,
        is_automatic: bool,
    ) -> String {
        let (function, limiter, key) = (self.function("block"), limiter.as_str(), key.as_str());
        format!("SELECT {function}('{limiter}', '{key}', {micros}, {is_automatic})")
    }

    /// Returns the statement that asks what [`doctor`](crate::PostgresStore::doctor) reports.
    pub(crate) fn facts(&self) -> String {
        format!(
            "SELECT current_setting('server_version'), pg_is_in_recovery(), \
             current_setting('default_transaction_isolation'), \
             (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass('{}')), current_setting('autovacuum'), \
             (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::bigint FROM pg_stat_activity \
             WHERE datname = current_database())",
            self.name("counts").replace('\'', "''")
        )
    }

    /// Returns the statement that reads the blocked keys.
    pub(crate) fn blocked(&self) -> String {
        format!(
            "SELECT limiter, key, micros FROM {}()",
            self.function("blocked")
        )
    }
}

impl Default for Names {
    fn default() -> Self {
        Self {
            schema: "public".to_owned(),
            prefix: "tollgate".to_owned(),
            is_logged: false,
        }
    }
}

fn joined<'a>(names: impl IntoIterator<Item = &'a RowName>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| &*name.0).collect();
    names.join(" ")
}

/// Quotes an identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_settings_are_quoted() {
        let names = Names {
            schema: "a\"; DROP".to_owned(),
            prefix: "My limits".to_owned(),
            is_logged: true,
        };
        let sql = names.sql();
        assert!(
            sql.contains(r#"CREATE  TABLE IF NOT EXISTS "a""; DROP"."My limits_counts" ("#),
            "{sql}"
        );
        assert!(!sql.contains(['{', '}']), "{sql}");
    }

    #[test]
    fn no_key_leaves_its_literal() {
        for text in ["a' OR 1", "a|b", "a b", "a\\", "\u{e9}\n", &"x'".repeat(99)] {
            let limiter = Key::from(text);
            let RowName(name) = RowName::new(&limiter, &limiter.and(&limiter));
            assert_eq!(name.matches('|').count(), 1, "{name}");
            assert!(!name.contains(['\'', '\\', ' ', '"', '{']), "{name}");
            assert!(name.is_ascii());
        }
    }
}
