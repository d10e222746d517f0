-- What a DedupTable named dedup needs on PostgreSQL. `DedupTable::migrate` runs this with its own name
-- in place of dedup.
--
-- Identities are bytes, as they were sent: no collation makes two of them one. To read them:
-- SELECT convert_from(delivery_id, 'UTF8') FROM dedup;
--
-- A table that was made before there was the column fingerprint gets it by the first of these. Its rows of jobs
-- stand under the names of their rules alone: the second has to be run for each rule of jobs, here charge.
-- ALTER TABLE dedup ADD COLUMN fingerprint BYTEA;
-- UPDATE dedup SET rule = 'job:'::BYTEA || rule WHERE rule = 'charge';
CREATE TABLE IF NOT EXISTS dedup (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The rule's name, of a rule for jobs after 'job:', and the scope: within them an identity is unique.
    rule BYTEA NOT NULL,
    scope BYTEA NOT NULL,
    -- The identity of the operation where it is not the delivery id itself.
    business_key BYTEA,
    -- The first delivery of it.
    delivery_id BYTEA NOT NULL,
    -- Seconds since 1970.
    created_at BIGINT NOT NULL DEFAULT (extract(epoch FROM now())::BIGINT),
    -- Keyed hashes of what must be the same when the identity comes again, and of the caller that a one-time
    -- token was bound to. Null if nothing is compared, the answer was given by hand, or the row is from before
    -- there was this column: such a row answers every request of its identity.
    fingerprint BYTEA,
    -- The answer; null until the handler commits, which nobody else can see.
    status INTEGER,
    headers BYTEA,
    -- Null if it was executed and its body was not kept.
    body BYTEA,
    trailers BYTEA,
    UNIQUE (rule, scope, business_key),
    UNIQUE (rule, scope, delivery_id)
);
CREATE INDEX IF NOT EXISTS dedup_created_at ON dedup (created_at);
