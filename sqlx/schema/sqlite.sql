-- What a DedupTable named dedup needs on SQLite 3.38 or newer. `DedupTable::migrate` runs this with its
-- own name in place of dedup.
--
-- Identities are bytes, as they were sent. To read them: SELECT CAST(delivery_id AS TEXT) FROM dedup;
--
-- A table that was made before there was the column fingerprint gets it by the first of these. Its rows of jobs
-- stand under the names of their rules alone: the second has to be run for each rule of jobs, here charge.
-- ALTER TABLE dedup ADD COLUMN fingerprint BLOB;
-- UPDATE dedup SET rule = CAST('job:' || rule AS BLOB) WHERE rule = CAST('charge' AS BLOB);
CREATE TABLE IF NOT EXISTS dedup (
    id INTEGER PRIMARY KEY,
    -- The rule's name, of a rule for jobs after 'job:', and the scope: within them an identity is unique.
    rule BLOB NOT NULL,
    scope BLOB NOT NULL,
    -- The identity of the operation where it is not the delivery id itself.
    business_key BLOB,
    -- The first delivery of it.
    delivery_id BLOB NOT NULL,
    -- Seconds since 1970.
    created_at INTEGER NOT NULL DEFAULT (unixepoch()),
    -- Keyed hashes of what must be the same when the identity comes again, and of the caller that a one-time
    -- token was bound to. Null if nothing is compared, the answer was given by hand, or the row is from before
    -- there was this column: such a row answers every request of its identity.
    fingerprint BLOB,
    -- The answer; null until the handler commits, which nobody else can see.
    status INTEGER,
    headers BLOB,
    -- Null if it was executed and its body was not kept.
    body BLOB,
    trailers BLOB,
    UNIQUE (rule, scope, business_key),
    UNIQUE (rule, scope, delivery_id)
);
CREATE INDEX IF NOT EXISTS dedup_created_at ON dedup (created_at);
