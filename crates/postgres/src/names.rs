//! The names of the tables and functions, and the statements that use them.

use std::fmt::Write as _;

use tollgate::store::{Batch, RowName, Write};

/// The SQL of [`PostgresRows::sql`](crate::PostgresRows::sql), with names in braces.
const SCHEMA: &str = include_str!("sql/schema.sql");

/// The part of the SQL that creates one table and its functions.
const TABLE: &str = include_str!("sql/table.sql");

/// The functions have a version in their names, so that processes of two versions of the crate can share the tables.
const FUNCTIONS: [&str; 4] = ["read", "lock", "swap", "clean"];

/// Where the tables and functions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) schema: String,
    pub(crate) prefix: String,
    pub(crate) is_logged: bool,
}

/// The names of one table and its functions, and the statements that use them. The name of a row needs no escape.
pub(crate) struct TableNames<'a> {
    names: &'a Names,
    name: &'static str,
    /// The beginning of the names of its functions.
    functions: &'static str,
}

impl Names {
    /// Returns the SQL that creates the tables and functions.
    pub(crate) fn sql(&self) -> String {
        let create_schema = match self.schema.as_str() {
            "public" => String::new(),
            schema => format!("CREATE SCHEMA IF NOT EXISTS {};\n", quoted(schema)),
        };
        let sql = SCHEMA.replace("{create_schema}", &create_schema);
        let unlogged = if self.is_logged { "" } else { "UNLOGGED" };
        // Operators expect blocked keys to outlive a crash.
        let sql = [sql, self.counts().sql(unlogged), self.blocks().sql("")].concat();
        sql.replace("{now}", &self.name("now_v1"))
    }

    fn name(&self, name: &str) -> String {
        let schema = quoted(&self.schema);
        let name = quoted(&format!("{}_{name}", self.prefix));
        format!("{schema}.{name}")
    }

    /// Returns the table that has the rows of a batch.
    pub(crate) fn table(&self, batch: &Batch) -> TableNames<'_> {
        if batch.is_of_blocks() {
            self.blocks()
        } else {
            self.counts()
        }
    }

    pub(crate) fn counts(&self) -> TableNames<'_> {
        TableNames {
            names: self,
            name: "counts",
            functions: "",
        }
    }

    fn blocks(&self) -> TableNames<'_> {
        TableNames {
            names: self,
            name: "blocked",
            functions: "blocked_",
        }
    }

    /// Returns the statement that asks what [`doctor`](crate::PostgresRows::doctor) reports.
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
}

impl TableNames<'_> {
    fn sql(&self, unlogged: &str) -> String {
        let mut sql = TABLE.replace("{unlogged}", unlogged);
        sql = sql.replace("{rows}", &self.names.name(self.name));
        // An index is in the schema of its table.
        let expiry = format!("{}_{}expiry", self.names.prefix, self.functions);
        sql = sql.replace("{expiry}", &quoted(&expiry));
        for function in FUNCTIONS {
            sql = sql.replace(&format!("{{{function}}}"), &self.function(function));
        }
        sql
    }

    fn function(&self, name: &str) -> String {
        self.names.name(&format!("{}{name}_v1", self.functions))
    }

    /// Returns the statement that reads rows.
    pub(crate) fn read<'a>(&self, names: impl Iterator<Item = &'a RowName>) -> String {
        let function = self.function("read");
        let names = joined(names);
        format!("SELECT version, value, now FROM {function}('{names}')")
    }

    /// Returns the statements that begin a transaction, lock rows and read them.
    pub(crate) fn lock<'a>(&self, names: impl Iterator<Item = &'a RowName>) -> String {
        let function = self.function("lock");
        let names = joined(names);
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT version, value, now FROM {function}('{names}')"
        )
    }

    /// Returns the statement that writes rows whose versions are those that were read.
    pub(crate) fn swap(&self, writes: &[Write<'_>], read: &[i64], new_version: i64) -> String {
        let mut groups = String::new();
        let mut versions = String::new();
        let mut values = String::new();
        let mut expiries = String::new();
        for (index, write) in writes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let version = read.get(write.index).copied().unwrap_or(0);
            // Writing to a text does not fail.
            let _ = write!(groups, "{comma}{}", write.group);
            let _ = write!(versions, "{comma}{version}");
            let _ = write!(expiries, "{comma}{}", write.expires_at);
            values.push_str(if index == 0 { "" } else { " " });
            push_hex(&mut values, write.value.as_deref());
        }
        let names = joined(writes.iter().map(|write| write.name));
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

/// Appends the digits of a value. A dash stands for a row without one.
fn push_hex(text: &mut String, value: Option<&[u8]>) {
    let Some(value) = value else {
        text.push('-');
        return;
    };
    for byte in value {
        let digits = [byte >> 4, byte & 15];
        text.extend(digits.map(hex_digit));
    }
}

fn hex_digit(half: u8) -> char {
    char::from_digit(half.into(), 16).unwrap_or('0')
}

fn joined<'a>(names: impl Iterator<Item = &'a RowName>) -> String {
    let names: Vec<_> = names.map(RowName::as_str).collect();
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
}
