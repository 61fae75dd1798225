-- The tables and functions of tollgate-postgres, version 1. Can be run again at any time.
--
-- {now} etc. are replaced by names. Rows are locked in the order of their names only, so that no two calls deadlock.
-- Each statement of a VOLATILE function sees what was committed before it began, if transactions are READ COMMITTED.

-- Two processes that start together migrate one after the other.
SELECT pg_advisory_xact_lock(7452081943);
{create_schema}
-- One row for each limiter and key. The version is a random number of the call that wrote the value: it never comes
-- again, also if the row is removed meanwhile. Without a value, nothing is counted. Times are microseconds since 1970.
-- Half of each page stays free, so that a row is updated in its page, without a change of an index.
CREATE {unlogged} TABLE IF NOT EXISTS {counts} (
    name text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    value bytea,
    expires_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
-- A charge changes the time about once in a window.
CREATE INDEX IF NOT EXISTS {expiry} ON {counts} (expires_at);

-- The blocked keys. Operators expect them to outlive a crash.
CREATE TABLE IF NOT EXISTS {blocks} (
    limiter text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (limiter, key)
);

-- The clock of the store.
CREATE OR REPLACE FUNCTION {now}() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Reads rows, in the order of their names in the call, and the time. Locks nothing.
-- The settings keep the plan that a large table needs, which the planner does not know before it has statistics.
CREATE OR REPLACE FUNCTION {read}(names text)
RETURNS TABLE (version bigint, value bytea, now bigint) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    RETURN QUERY
        SELECT coalesce(c.version, 0), c.value, {now}()
        FROM unnest(string_to_array(names, ' ')) WITH ORDINALITY AS n (name, number)
        LEFT JOIN {counts} c ON c.name = n.name
        ORDER BY n.number;
END
$$;

-- Locks rows, and reads them as the locks have found them. For a transaction that writes them next: if its client does
-- nothing for a second, Postgres ends it.
CREATE OR REPLACE FUNCTION {lock}(names text)
RETURNS TABLE (version bigint, value bytea, now bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '1000', true);
    -- Inserts rows that are missing, and locks the others, which it does not change.
    INSERT INTO {counts} AS c
        SELECT n, 0, NULL, 0 FROM unnest(string_to_array(names, ' ')) AS n ORDER BY n COLLATE "C"
        ON CONFLICT (name) DO UPDATE SET version = 0 WHERE false;
    RETURN QUERY SELECT * FROM {read}(names);
END
$$;

-- Writes rows whose version is still the one that was read; 0 stands for a missing row. The rows of a group are all
-- written or none. Returns the groups that were not.
CREATE OR REPLACE FUNCTION {swap}(
    all_groups integer[], all_names text, versions bigint[], new_version bigint, all_values text, expiries bigint[]
) RETURNS TABLE (lost integer) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    names text[] := string_to_array(all_names, ' ');
    hex text[] := string_to_array(all_values, ' ');
    lost_groups integer[];
BEGIN
    INSERT INTO {counts} AS c
        SELECT n, 0, NULL, 0 FROM unnest(names) AS n ORDER BY n COLLATE "C"
        ON CONFLICT (name) DO UPDATE SET version = 0 WHERE false;
    -- A new statement, which sees the rows as they are under the lock.
    lost_groups := ARRAY(
        SELECT DISTINCT n.in_group
        FROM unnest(all_groups, names, versions) AS n (in_group, name, version)
        LEFT JOIN {counts} c ON c.name = n.name
        WHERE c.version IS DISTINCT FROM n.version
    );
    UPDATE {counts} c
        SET version = new_version, value = decode(nullif(n.hex, '-'), 'hex'), expires_at = n.expires_at
        FROM unnest(all_groups, names, hex, expiries) AS n (in_group, name, hex, expires_at)
        WHERE c.name = n.name AND n.in_group <> ALL (lost_groups);
    RETURN QUERY SELECT unnest(lost_groups);
END
$$;

-- Removes expired rows that nobody is using. Returns their number, of at most the limit.
CREATE OR REPLACE FUNCTION {clean}(most integer) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM {counts} WHERE name IN (
        SELECT c.name FROM {counts} c WHERE c.expires_at <= {now}() ORDER BY c.expires_at LIMIT most
        FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;

-- Blocks a key for a time, or unblocks it if the time is 0. Returns whether it took effect: an automatic block does not
-- replace another one. NULL if the list is full.
CREATE OR REPLACE FUNCTION {block}(of_limiter text, of_key text, micros bigint, is_automatic boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    blocked bigint;
    of_same bigint;
    is_known boolean;
BEGIN
    -- One block after the other, so that each sees those before. Readers do not wait.
    LOCK TABLE {blocks} IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM {blocks} b WHERE b.until <= {now}();
    IF micros <= 0 THEN
        DELETE FROM {blocks} b WHERE b.limiter = of_limiter AND b.key = of_key;
        RETURN true;
    END IF;
    SELECT count(*), count(*) FILTER (WHERE b.limiter = of_limiter),
           coalesce(bool_or(b.limiter = of_limiter AND b.key = of_key), false)
        INTO blocked, of_same, is_known FROM {blocks} b;
    IF is_known AND is_automatic THEN
        RETURN false;
    END IF;
    IF NOT is_known AND (blocked >= 10000 OR is_automatic AND (blocked >= 9000 OR of_same >= 1000)) THEN
        RETURN NULL;
    END IF;
    INSERT INTO {blocks} VALUES (of_limiter, of_key, {now}() + micros)
        ON CONFLICT (limiter, key) DO UPDATE SET until = EXCLUDED.until;
    RETURN true;
END
$$;

-- Returns the blocked keys, and the microseconds that are left of each block.
CREATE OR REPLACE FUNCTION {blocked}() RETURNS TABLE (limiter text, key text, micros bigint) LANGUAGE sql VOLATILE AS $$
    SELECT b.limiter, b.key, b.until - {now}() FROM {blocks} b WHERE b.until > {now}()
$$;
