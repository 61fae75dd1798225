
-- One row for each limiter and key. The version is a random number of the call that wrote the value: it never comes
-- again, also if the row is removed meanwhile. Without a value, nothing is counted. Times are microseconds since 1970.
-- Half of each page stays free, so that a row is updated in its page, without a change of an index.
CREATE {unlogged} TABLE IF NOT EXISTS {rows} (
    name text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    value bytea,
    expires_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
-- A charge changes the time about once in a window.
CREATE INDEX IF NOT EXISTS {expiry} ON {rows} (expires_at);

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
        LEFT JOIN {rows} c ON c.name = n.name
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
    INSERT INTO {rows} AS c
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
    INSERT INTO {rows} AS c
        SELECT n, 0, NULL, 0 FROM unnest(names) AS n ORDER BY n COLLATE "C"
        ON CONFLICT (name) DO UPDATE SET version = 0 WHERE false;
    -- A new statement, which sees the rows as they are under the lock.
    lost_groups := ARRAY(
        SELECT DISTINCT n.in_group
        FROM unnest(all_groups, names, versions) AS n (in_group, name, version)
        LEFT JOIN {rows} c ON c.name = n.name
        WHERE c.version IS DISTINCT FROM n.version
    );
    UPDATE {rows} c
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
    DELETE FROM {rows} WHERE name IN (
        SELECT c.name FROM {rows} c WHERE c.expires_at <= {now}() ORDER BY c.expires_at LIMIT most
        FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
