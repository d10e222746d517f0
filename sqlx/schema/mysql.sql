-- What a DedupTable named dedup needs on MySQL 8.0.13 or MariaDB 10.5, or newer. `DedupTable::migrate`
-- runs this with its own name in place of dedup.
--
-- Identities are bytes, as they were sent: most collations take 'a', 'A' and 'a ' for one. To read them:
-- SELECT CONVERT(delivery_id USING utf8mb4) FROM dedup;
--
-- A table that was made before there was the column fingerprint gets it by the first of these. Its rows of jobs
-- stand under the names of their rules alone: the second has to be run for each rule of jobs, here charge.
-- ALTER TABLE dedup ADD COLUMN fingerprint BLOB;
-- UPDATE dedup SET rule = CONCAT('job:', rule) WHERE rule = 'charge';
CREATE TABLE IF NOT EXISTS dedup (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- The rule's name, of a rule for jobs after 'job:', and the scope: within them an identity is unique.
    rule VARBINARY(255) NOT NULL,
    scope VARBINARY(1024) NOT NULL,
    -- The identity of the operation where it is not the delivery id itself.
    business_key VARBINARY(255),
    -- The first delivery of it.
    delivery_id VARBINARY(255) NOT NULL,
    -- Turned by each duplicate: only a row that changes is told from one that was inserted.
    touched TINYINT NOT NULL DEFAULT 0,
    -- Seconds since 1970.
    created_at BIGINT NOT NULL DEFAULT (UNIX_TIMESTAMP()),
    -- Keyed hashes of what must be the same when the identity comes again, and of the caller that a one-time
    -- token was bound to. Null if nothing is compared, the answer was given by hand, or the row is from before
    -- there was this column: such a row answers every request of its identity.
    fingerprint BLOB,
    -- The answer; null until the handler commits, which nobody else can see.
    status INTEGER,
    headers MEDIUMBLOB,
    -- Null if it was executed and its body was not kept.
    body LONGBLOB,
    trailers MEDIUMBLOB,
    UNIQUE KEY business_key (rule, scope, business_key),
    UNIQUE KEY delivery_id (rule, scope, delivery_id),
    KEY created_at (created_at)
) ENGINE = InnoDB;
