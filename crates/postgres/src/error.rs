//! Turns errors of Postgres and of its connection into errors of checks.

use tollgate::{Error, ErrorKind};

/// Returns the error of a check for an error of sqlx.
pub(crate) fn failed(error: sqlx::Error) -> Error {
    let (kind, text) = match &error {
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default();
            let (kind, remedy) = classify(&code);
            (
                kind,
                format!(
                    "Postgres failed with {code}: {}{remedy}",
                    database.message()
                ),
            )
        }
        sqlx::Error::PoolTimedOut => (
            ErrorKind::Timeout,
            "no connection of the Postgres pool was free: the store needs one".to_owned(),
        ),
        sqlx::Error::PoolClosed => (
            ErrorKind::Misconfigured,
            "the Postgres pool is closed".to_owned(),
        ),
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) => (
            ErrorKind::Misconfigured,
            format!("cannot connect to Postgres: {error}"),
        ),
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnNotFound(_) => (
            ErrorKind::InvalidReply,
            format!("the reply of Postgres is malformed: {error}"),
        ),
        _ => (
            ErrorKind::Unavailable,
            format!("Postgres is unreachable: {error}"),
        ),
    };
    Error::new(kind, text).with_source(error)
}

/// Returns the kind of an error with this SQLSTATE, and the remedy.
fn classify(code: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Full, InvalidReply, Misconfigured, Timeout, Unavailable};
    match code {
        // An undefined function, table or schema.
        "42883" | "42P01" | "3F000" => (
            Misconfigured,
            "; call `PostgresRows::migrate`, or run the SQL of `PostgresRows::sql`",
        ),
        "42501" => (
            Misconfigured,
            "; grant the user of the service SELECT, INSERT, UPDATE and DELETE on the tables of the store",
        ),
        "55P03" | "57014" => (Timeout, ""),
        "53100" => (Full, ""),
        // Authorization, or a database that does not exist.
        _ if code.starts_with("28") || code == "3D000" => (Misconfigured, ""),
        _ if code.starts_with("22") || code.starts_with("42") => (InvalidReply, ""),
        _ => (Unavailable, ""),
    }
}

/// Returns whether Postgres says that it has written nothing: after a serialization failure or a deadlock. Of its other
/// errors of transactions, 40003 leaves open what was written.
pub(crate) fn is_rolled_back(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let sqlx = source.and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = sqlx
        .and_then(sqlx::Error::as_database_error)
        .and_then(|database| database.code());
    code.is_some_and(|code| matches!(&*code, "40000" | "40001" | "40P01"))
}

/// Returns the error of a reply that does not match its call.
pub(crate) fn malformed() -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        "the reply of Postgres is malformed: are the functions of the store its own?",
    )
}

/// Returns the error of a row that another program changed while this one had locked it.
pub(crate) fn not_locked() -> Error {
    Error::new(
        ErrorKind::Misconfigured,
        "a row was changed under its lock: only this crate may write the tables of the store",
    )
}
