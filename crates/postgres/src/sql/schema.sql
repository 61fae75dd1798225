-- The tables and functions of tollgate-postgres, version 1. Can be run again at any time.
--
-- {now} etc. are replaced by names. Rows are locked in the order of their names only, so that no two calls deadlock.
-- Each statement of a VOLATILE function sees what was committed before it began, if transactions are READ COMMITTED.

-- Two processes that start together migrate one after the other.
SELECT pg_advisory_xact_lock(7452081943);
{create_schema}

-- The clock of the store.
CREATE OR REPLACE FUNCTION {now}() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;
