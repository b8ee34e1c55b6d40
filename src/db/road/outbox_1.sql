-- The outbox as version 1 had it. Never changed; src/db/migrate.rs goes on from here.
-- Lives in outbox.db, or in an application's own file. Producers insert; the relay writes the rest.

CREATE TABLE IF NOT EXISTS onceward_meta ( -- may be there already: the part `once` keeps its version here too
  key   TEXT PRIMARY KEY NOT NULL,   -- outbox_schema, ...
  value TEXT NOT NULL
);

CREATE TABLE outbox (
  -- order of arrival; AUTOINCREMENT: an id never comes back, not even after a purge of the newest row
  id               INTEGER PRIMARY KEY AUTOINCREMENT,
  -- the reference at the vendor, for the row's whole life: 'ow-' + milliseconds in hex + 64 random bits, 30 bytes.
  -- In time order (the inbox index stays hot), never derived from id (a new file must not repeat an old one's ids).
  message_id       TEXT NOT NULL UNIQUE
                   DEFAULT ('ow-' || printf('%011x', CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER))
                                  || lower(hex(randomblob(8)))),
  dedup_key        TEXT NOT NULL UNIQUE,                       -- from business keys: one event is one row
  kind             TEXT NOT NULL,                              -- what it is about; routes go by it
  class            TEXT NOT NULL DEFAULT 'TRANSACTIONAL',      -- decides the sending hours
  destination      TEXT NOT NULL DEFAULT '',                   -- '' = by route; the relay fills it in once
  recipient        TEXT NOT NULL,                              -- to whom
  payload          TEXT NOT NULL,                              -- everything to be sent, as JSON
  ordering_key     TEXT,                                       -- rows of one key go one after another, by id
  priority         INTEGER NOT NULL DEFAULT 5,                 -- 0 (first) to 9
  not_before_ms    INTEGER NOT NULL                            -- due time
                   DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)),
  expires_at_ms    INTEGER,                                    -- deadline
  traceparent      TEXT,                                       -- W3C trace context
  status           TEXT NOT NULL DEFAULT 'PENDING',
  attempts         INTEGER NOT NULL DEFAULT 0,                 -- counted in the claim, given back where none was used
  reason           TEXT,                                       -- why it waits, is parked or was closed
  claimed_by       TEXT,                                       -- AGENT:START while PUBLISHING
  claimed_until_ms INTEGER,                                    -- end of the lease while PUBLISHING
  created_at_ms    INTEGER NOT NULL
                   DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)),
  updated_at_ms    INTEGER NOT NULL
                   DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)),
  closed_at_ms     INTEGER,                                    -- set in final states only
  blocked          INTEGER NOT NULL DEFAULT 0,                 -- 1 = an earlier row of its ordering_key is not finished; 2 = until the clock is right
  wiped_at_ms      INTEGER,                                    -- retention: recipient and payload are '' since then
  fingerprint      TEXT,                                       -- what a wiped row said: version ':' hash


  -- bytes too, not only characters: length() ends at a NUL. What becomes part of logs and requests is printable ASCII.
  CONSTRAINT message_id_has_1_to_100_printable_ascii_characters CHECK (typeof(message_id) = 'text' AND length(message_id) BETWEEN 1 AND 100 AND length(CAST(message_id AS BLOB)) <= 100 AND message_id NOT GLOB '*[^!-~]*'),
  CONSTRAINT dedup_key_has_1_to_200_characters  CHECK (typeof(dedup_key) = 'text' AND length(dedup_key) BETWEEN 1 AND 200 AND length(CAST(dedup_key AS BLOB)) <= 800),
  CONSTRAINT kind_has_1_to_200_characters       CHECK (typeof(kind) = 'text' AND length(kind) BETWEEN 1 AND 200 AND length(CAST(kind AS BLOB)) <= 800),
  CONSTRAINT class_is_transactional_or_advertising CHECK (class = 'TRANSACTIONAL' OR class = 'ADVERTISING'),
  CONSTRAINT destination_has_at_most_40_letters_digits_and_dots CHECK (typeof(destination) = 'text' AND length(CAST(destination AS BLOB)) <= 40 AND destination NOT GLOB '*[^-A-Za-z0-9_.]*'),
  CONSTRAINT recipient_has_at_most_200_characters CHECK (typeof(recipient) = 'text' AND length(recipient) <= 200 AND length(CAST(recipient AS BLOB)) <= 800),
  CONSTRAINT payload_is_text_of_at_most_64_kib  CHECK (typeof(payload) = 'text' AND length(CAST(payload AS BLOB)) <= 65536),
  CONSTRAINT ordering_key_has_1_to_200_characters CHECK (ordering_key IS NULL OR (typeof(ordering_key) = 'text' AND length(ordering_key) BETWEEN 1 AND 200 AND length(CAST(ordering_key AS BLOB)) <= 800)),
  CONSTRAINT priority_is_0_to_9                 CHECK (typeof(priority) = 'integer' AND priority BETWEEN 0 AND 9),
  CONSTRAINT not_before_ms_is_in_milliseconds   CHECK (typeof(not_before_ms) = 'integer' AND not_before_ms < 100000000000000),
  CONSTRAINT created_at_ms_is_an_integer        CHECK (typeof(created_at_ms) = 'integer'),
  CONSTRAINT updated_at_ms_is_an_integer        CHECK (typeof(updated_at_ms) = 'integer'),
  CONSTRAINT expires_at_ms_is_in_milliseconds   CHECK (expires_at_ms IS NULL OR (typeof(expires_at_ms) = 'integer' AND expires_at_ms < 100000000000000)),
  CONSTRAINT traceparent_has_at_most_200_characters CHECK (traceparent IS NULL OR (typeof(traceparent) = 'text' AND length(CAST(traceparent AS BLOB)) <= 200)),
  CONSTRAINT status_is_known CHECK (status = 'PENDING' OR status = 'PUBLISHING' OR status = 'PUBLISHED' OR status = 'SKIPPED' OR status = 'EXPIRED' OR status = 'PARKED' OR status = 'HELD' OR status = 'FAILED'),
  CONSTRAINT attempts_is_a_count                CHECK (typeof(attempts) = 'integer' AND attempts BETWEEN 0 AND 1000000),
  CONSTRAINT only_publishing_has_an_owner       CHECK ((status = 'PUBLISHING') = (claimed_by IS NOT NULL)),
  CONSTRAINT owner_and_lease_go_together        CHECK ((claimed_by IS NULL) = (claimed_until_ms IS NULL)),
  CONSTRAINT only_final_states_are_closed       CHECK ((status = 'PUBLISHED' OR status = 'SKIPPED' OR status = 'EXPIRED' OR status = 'FAILED') = (closed_at_ms IS NOT NULL)),
  CONSTRAINT blocked_is_0_to_2                  CHECK (blocked IN (0, 1, 2)),
  CONSTRAINT only_closed_rows_are_wiped         CHECK (wiped_at_ms IS NULL OR (closed_at_ms IS NOT NULL AND fingerprint IS NOT NULL AND recipient = '' AND payload = ''))
);

-- the claim: one destination, `priority IN (0..9)`, due first; costs the same at any backlog
CREATE INDEX outbox_due ON outbox (destination, priority, not_before_ms) WHERE status = 'PENDING' AND blocked = 0;
CREATE INDEX outbox_clock ON outbox (id) WHERE blocked = 2;
CREATE INDEX outbox_claimed ON outbox (claimed_until_ms) WHERE status = 'PUBLISHING';
CREATE INDEX outbox_deadline ON outbox (expires_at_ms) WHERE status = 'PENDING' AND expires_at_ms IS NOT NULL;
-- written with OR: SQLite does not see that `status = 'PARKED'` is within an IN
CREATE INDEX outbox_stopped ON outbox (status, updated_at_ms) WHERE status = 'PARKED' OR status = 'HELD' OR status = 'EXPIRED';
-- retention: whose body is still there, and whose key alone is, oldest end first
CREATE INDEX outbox_body ON outbox (closed_at_ms) WHERE closed_at_ms IS NOT NULL AND wiped_at_ms IS NULL;
CREATE INDEX outbox_key ON outbox (closed_at_ms) WHERE closed_at_ms IS NOT NULL AND wiped_at_ms IS NOT NULL;
CREATE INDEX outbox_lane ON outbox (ordering_key, id) WHERE ordering_key IS NOT NULL AND closed_at_ms IS NULL;

-- A second row under a known dedup_key: kept apart, never sent. Holds personal data like the outbox itself.
CREATE TABLE quarantine (
  id               INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms            INTEGER NOT NULL,
  dedup_key        TEXT NOT NULL,
  first_message_id TEXT NOT NULL,                              -- the row that stands
  kind             TEXT,
  class            TEXT,
  destination      TEXT,
  recipient        TEXT,
  payload          TEXT,
  ordering_key     TEXT,
  reason           TEXT NOT NULL
);
CREATE INDEX quarantine_key ON quarantine (dedup_key);
CREATE INDEX quarantine_body ON quarantine (at_ms) WHERE recipient IS NOT NULL OR payload IS NOT NULL;
CREATE INDEX quarantine_age ON quarantine (at_ms);

-- A row under the key of a wiped one: SQL cannot tell whether it says the same, the agent compares fingerprints within
-- seconds. The same: gone. Other content: on to quarantine. Never sent.
CREATE TABLE outbox_recheck (
  id               INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms            INTEGER NOT NULL,
  dedup_key        TEXT NOT NULL,
  kind             TEXT,
  class            TEXT,
  destination      TEXT,
  recipient        TEXT,
  payload          TEXT,
  ordering_key     TEXT
);
CREATE INDEX outbox_recheck_key ON outbox_recheck (dedup_key);

-- Counts that outlive the rows, kept by triggers in the very transaction: accepted = rows that are there + deleted ones.
CREATE TABLE outbox_ledger (
  what  TEXT PRIMARY KEY NOT NULL,   -- ACCEPTED, or the state that a deleted row had
  count INTEGER NOT NULL
);
INSERT INTO outbox_ledger (what, count)
VALUES ('ACCEPTED', 0), ('PUBLISHED', 0), ('SKIPPED', 0), ('EXPIRED', 0), ('FAILED', 0), ('QUARANTINED', 0);

-- Opt-outs: whoever stands here gets nothing that the row covers. Applications insert and delete with plain SQL, or
-- people with `onceward suppress`. What is left empty stands for all of it.
CREATE TABLE suppress (
  recipient   TEXT NOT NULL,               -- a phone number (any way of writing it) or another recipient as rows have it
  destination TEXT NOT NULL DEFAULT '',    -- only of this destination
  channel     TEXT NOT NULL DEFAULT '',    -- only of this channel: the payload's type (sms stands for lms and mms too)
  class       TEXT NOT NULL DEFAULT '',    -- only of this class
  note        TEXT,
  at_ms       INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)),
  PRIMARY KEY (recipient, destination, channel, class),
  CONSTRAINT recipient_has_1_to_200_characters  CHECK (typeof(recipient) = 'text' AND length(recipient) BETWEEN 1 AND 200),
  CONSTRAINT destination_has_at_most_40_characters CHECK (typeof(destination) = 'text' AND length(destination) <= 40),
  CONSTRAINT channel_has_at_most_40_characters  CHECK (typeof(channel) = 'text' AND length(channel) <= 40),
  CONSTRAINT class_is_empty_transactional_or_advertising CHECK (class IN ('', 'TRANSACTIONAL', 'ADVERTISING')),
  CONSTRAINT note_has_at_most_200_characters    CHECK (note IS NULL OR length(note) <= 200)
) WITHOUT ROWID;

-- One form for a number, however it was written, as src/policy/number.rs has it: an opt-out that is not found is a
-- message that should not have been sent.
CREATE TRIGGER suppress_canonical BEFORE INSERT ON suppress
WHEN NEW.recipient NOT GLOB '*[^0-9+() .-]*'
  AND NEW.recipient IS NOT (SELECT CASE
        WHEN plain LIKE '+82%' THEN '0' || ltrim(substr(plain, 4), '0')
        WHEN plain LIKE '0082%' THEN '0' || ltrim(substr(plain, 5), '0')
        ELSE plain END
      FROM (SELECT replace(replace(replace(replace(replace(NEW.recipient, '-', ''), ' ', ''), '(', ''), ')', ''), '.', '') AS plain))
BEGIN
  INSERT INTO suppress (recipient, destination, channel, class, note, at_ms)
  SELECT canonical, NEW.destination, NEW.channel, NEW.class, NEW.note, NEW.at_ms
    FROM (SELECT CASE
            WHEN plain LIKE '+82%' THEN '0' || ltrim(substr(plain, 4), '0')
            WHEN plain LIKE '0082%' THEN '0' || ltrim(substr(plain, 5), '0')
            ELSE plain END AS canonical
          FROM (SELECT replace(replace(replace(replace(replace(NEW.recipient, '-', ''), ' ', ''), '(', ''), ')', ''), '.', '') AS plain))
   WHERE NOT EXISTS (SELECT 1 FROM suppress AS known
                      WHERE known.recipient = canonical AND known.destination = NEW.destination
                        AND known.channel = NEW.channel AND known.class = NEW.class);
  SELECT RAISE(IGNORE);
END;

-- The same event again is harmless, whatever the statement (INSERT, OR IGNORE, OR REPLACE, DO UPDATE): the first row
-- stands. Other content under the same key goes to quarantine, once per content.
CREATE TRIGGER outbox_same_key BEFORE INSERT ON outbox
WHEN EXISTS (SELECT 1 FROM outbox WHERE dedup_key = NEW.dedup_key)
BEGIN
  INSERT INTO quarantine (at_ms, dedup_key, first_message_id, kind, class, destination, recipient, payload, ordering_key, reason)
  SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER), NEW.dedup_key, first.message_id, NEW.kind,
         NEW.class, NEW.destination, NEW.recipient, NEW.payload, NEW.ordering_key, 'SAME_KEY_OTHER_CONTENT'
    FROM outbox AS first
   WHERE first.dedup_key = NEW.dedup_key
     AND (first.kind IS NOT NEW.kind OR first.class IS NOT NEW.class OR first.ordering_key IS NOT NEW.ordering_key
          OR (first.wiped_at_ms IS NULL
              AND (first.recipient IS NOT NEW.recipient OR first.payload IS NOT NEW.payload))
          OR (NEW.destination <> '' AND first.destination <> '' AND first.destination IS NOT NEW.destination))
     AND NOT EXISTS (SELECT 1 FROM quarantine AS q
                      WHERE q.dedup_key = NEW.dedup_key AND q.kind IS NEW.kind AND q.class IS NEW.class
                        AND q.destination IS NEW.destination AND q.recipient IS NEW.recipient
                        AND q.payload IS NEW.payload AND q.ordering_key IS NEW.ordering_key);
  INSERT INTO outbox_recheck (at_ms, dedup_key, kind, class, destination, recipient, payload, ordering_key)
  SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER), NEW.dedup_key, NEW.kind, NEW.class,
         NEW.destination, NEW.recipient, NEW.payload, NEW.ordering_key
    FROM outbox AS first
   WHERE first.dedup_key = NEW.dedup_key AND first.wiped_at_ms IS NOT NULL
     AND first.kind IS NEW.kind AND first.class IS NEW.class AND first.ordering_key IS NEW.ordering_key
     AND NOT (NEW.destination <> '' AND first.destination <> '' AND first.destination IS NOT NEW.destination)
     AND NOT EXISTS (SELECT 1 FROM outbox_recheck AS r
                      WHERE r.dedup_key = NEW.dedup_key AND r.destination IS NEW.destination
                        AND r.recipient IS NEW.recipient AND r.payload IS NEW.payload);
  SELECT RAISE(IGNORE);
END;

-- While `onceward drain` has it so: nothing new, and the producer is told (it has not been taken, so it is not lost). A
-- known key passes: the same event again is harmless. The mark carries its end.
CREATE TRIGGER outbox_drain BEFORE INSERT ON outbox
WHEN EXISTS (SELECT 1 FROM onceward_meta
              WHERE key = 'intake_closed_until_ms'
                AND CAST(value AS INTEGER) > CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER))
 AND NOT EXISTS (SELECT 1 FROM outbox WHERE dedup_key = NEW.dedup_key)
BEGIN
  SELECT RAISE(ABORT, 'onceward: the outbox is being drained and takes nothing new; try again later (an operator ends it with onceward drain --end)');
END;

CREATE TRIGGER outbox_insert_state BEFORE INSERT ON outbox
WHEN NEW.status NOT IN ('PENDING', 'HELD') OR NEW.attempts <> 0 OR NEW.blocked <> 0
BEGIN
  SELECT RAISE(ABORT, 'onceward: a new row starts as PENDING (or HELD) with attempts 0; leave status, attempts and blocked to their defaults');
END;

-- OR REPLACE with an id or message_id of another row would delete that row.
CREATE TRIGGER outbox_insert_identity BEFORE INSERT ON outbox
WHEN EXISTS (SELECT 1 FROM outbox WHERE (id = NEW.id OR message_id = NEW.message_id) AND dedup_key IS NOT NEW.dedup_key)
BEGIN
  SELECT RAISE(ABORT, 'onceward: this id or message_id belongs to another message; leave both to their defaults');
END;

-- AUTOINCREMENT never goes below the largest id there ever was: one INSERT with a huge id of its own would make every
-- later one fail. (Rows of one statement follow each other, so only a gap is refused.)
CREATE TRIGGER outbox_insert_id AFTER INSERT ON outbox
WHEN NEW.id > 1 + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0)
 AND NOT EXISTS (SELECT 1 FROM outbox WHERE id = NEW.id - 1)
BEGIN
  SELECT RAISE(ABORT, 'onceward: leave id to its default');
END;

CREATE TRIGGER outbox_accepted AFTER INSERT ON outbox
BEGIN
  UPDATE outbox_ledger SET count = count + 1 WHERE what = 'ACCEPTED';
END;

CREATE TRIGGER outbox_lane_enter AFTER INSERT ON outbox
WHEN NEW.ordering_key IS NOT NULL
BEGIN
  UPDATE outbox SET blocked = 1
   WHERE id = NEW.id
     AND EXISTS (SELECT 1 FROM outbox AS earlier
                  WHERE earlier.ordering_key = NEW.ordering_key AND earlier.closed_at_ms IS NULL AND earlier.id < NEW.id);
END;

CREATE TRIGGER outbox_lane_leave AFTER UPDATE OF closed_at_ms ON outbox
WHEN NEW.closed_at_ms IS NOT NULL AND OLD.closed_at_ms IS NULL AND NEW.ordering_key IS NOT NULL
BEGIN
  UPDATE outbox SET blocked = 0
   WHERE id = (SELECT min(next.id) FROM outbox AS next
                WHERE next.ordering_key = NEW.ordering_key AND next.closed_at_ms IS NULL);
END;

CREATE TRIGGER outbox_move BEFORE UPDATE OF status ON outbox
WHEN OLD.status <> NEW.status AND NOT (
  (OLD.status = 'PENDING' AND NEW.status = 'PUBLISHING')
  OR (OLD.status = 'PUBLISHING' AND NEW.status = 'PUBLISHED')
  OR (OLD.status = 'PUBLISHING' AND NEW.status = 'PENDING')
  OR (OLD.status = 'PENDING' AND NEW.status = 'SKIPPED')
  OR (OLD.status = 'PUBLISHING' AND NEW.status = 'SKIPPED')
  OR (OLD.status = 'PENDING' AND NEW.status = 'EXPIRED')
  OR (OLD.status = 'PUBLISHING' AND NEW.status = 'EXPIRED')
  OR (OLD.status = 'PUBLISHING' AND NEW.status = 'PARKED')
  OR (OLD.status = 'PARKED' AND NEW.status = 'PENDING')
  OR (OLD.status = 'HELD' AND NEW.status = 'PENDING')
  OR (OLD.status = 'PENDING' AND NEW.status = 'HELD')
  OR (OLD.status = 'PARKED' AND NEW.status = 'FAILED')
  OR (OLD.status = 'HELD' AND NEW.status = 'FAILED')
  OR (OLD.status = 'PUBLISHED' AND NEW.status = 'PENDING'))
BEGIN
  SELECT RAISE(ABORT, 'onceward: this change of status is not allowed; use onceward hold, release or cancel (and settle for ERROR)');
END;

-- PUBLISHED opens again only where its ERROR was proven not sent. Not by hand: the inbox would only close it again.
CREATE TRIGGER outbox_rearm BEFORE UPDATE OF status ON outbox
WHEN OLD.status = 'PUBLISHED' AND NEW.status = 'PENDING' AND coalesce(NEW.reason, '') NOT LIKE 'NOT_SENT: %'
BEGIN
  SELECT RAISE(ABORT, 'onceward: a published message goes again only by onceward settle ID --not-sent');
END;

-- It takes its place in its order lane again: what is still open behind it waits for it.
CREATE TRIGGER outbox_lane_return AFTER UPDATE OF closed_at_ms ON outbox
WHEN NEW.closed_at_ms IS NULL AND OLD.closed_at_ms IS NOT NULL AND NEW.ordering_key IS NOT NULL
BEGIN
  UPDATE outbox SET blocked = (id <> (SELECT min(first.id) FROM outbox AS first
                                       WHERE first.ordering_key = NEW.ordering_key AND first.closed_at_ms IS NULL))
   WHERE ordering_key = NEW.ordering_key AND closed_at_ms IS NULL;
END;

-- What was promised to the customer is not edited: cancel the row and insert another under a new dedup_key. A closed
-- row is wiped by retention, whole and once: its fingerprint takes the place of recipient and payload.
CREATE TRIGGER outbox_facts BEFORE UPDATE OF id, message_id, dedup_key, kind, class, recipient, payload, ordering_key, created_at_ms, wiped_at_ms, fingerprint ON outbox
WHEN OLD.id IS NOT NEW.id OR OLD.message_id IS NOT NEW.message_id OR OLD.dedup_key IS NOT NEW.dedup_key
  OR OLD.kind IS NOT NEW.kind OR OLD.class IS NOT NEW.class OR OLD.ordering_key IS NOT NEW.ordering_key
  OR OLD.created_at_ms IS NOT NEW.created_at_ms
  OR ((OLD.payload IS NOT NEW.payload OR OLD.recipient IS NOT NEW.recipient OR OLD.wiped_at_ms IS NOT NEW.wiped_at_ms
       OR OLD.fingerprint IS NOT NEW.fingerprint)
      AND NOT (OLD.closed_at_ms IS NOT NULL AND OLD.wiped_at_ms IS NULL AND NEW.wiped_at_ms IS NOT NULL))
BEGIN
  SELECT RAISE(ABORT, 'onceward: a message is not edited; use onceward cancel and insert a new row with a new dedup_key');
END;

CREATE TRIGGER outbox_route BEFORE UPDATE OF destination ON outbox
WHEN OLD.destination <> '' AND OLD.destination IS NOT NEW.destination
BEGIN
  SELECT RAISE(ABORT, 'onceward: a message does not change its destination; use onceward cancel and insert a new row with a new dedup_key');
END;

CREATE TRIGGER outbox_delete BEFORE DELETE ON outbox
WHEN OLD.closed_at_ms IS NULL
BEGIN
  SELECT RAISE(ABORT, 'onceward: an unfinished message is not deleted; use onceward hold and onceward cancel');
END;

-- What people (and the look-up) did to messages and destinations, in the same transaction as the deed.
CREATE TABLE audit (
  id          INTEGER PRIMARY KEY,
  at_ms       INTEGER NOT NULL,
  who         TEXT NOT NULL,                        -- 'uid 1000 (name)', 'token', 'look-up'
  verb        TEXT NOT NULL,                        -- SETTLE_SENT, HOLD, PAUSE, ...
  target      TEXT NOT NULL,                        -- message id, or '' where a destination or the agent is meant
  destination TEXT NOT NULL,                        -- or ''
  note        TEXT NOT NULL,                        -- why
  state_before TEXT NOT NULL,
  state_after  TEXT NOT NULL
);
CREATE INDEX audit_target ON audit (target);

CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit
BEGIN
  SELECT RAISE(ABORT, 'onceward: the audit is not edited');
END;

-- A key that went too early would let its event be sent again.
CREATE TRIGGER outbox_delete_key BEFORE DELETE ON outbox
WHEN OLD.closed_at_ms IS NOT NULL AND OLD.wiped_at_ms IS NULL
BEGIN
  SELECT RAISE(ABORT, 'onceward: a key is kept as long as its event could come again; retention deletes it, see onceward purge');
END;

CREATE TRIGGER outbox_deleted AFTER DELETE ON outbox
BEGIN
  UPDATE outbox_ledger SET count = count + 1 WHERE what = OLD.status;
END;

CREATE TRIGGER quarantine_deleted AFTER DELETE ON quarantine
BEGIN
  UPDATE outbox_ledger SET count = count + 1 WHERE what = 'QUARANTINED';
END;

-- For people with a shell: readable times in the shell's own zone (set TZ to see another; the commands show the zone of
-- the settings), numbers masked as the commands mask them, no payload.
CREATE VIEW v_waiting AS
SELECT id, message_id, dedup_key, status, destination, kind, class, priority,
       CASE WHEN length(recipient) < 7 THEN '****' ELSE substr(recipient, 1, 3) || '****' || substr(recipient, -2) END AS recipient,
       attempts, reason, CASE blocked WHEN 1 THEN 'behind an earlier row of its ordering_key' WHEN 2 THEN 'until the clock is right' END AS waits,
       strftime('%Y-%m-%d %H:%M:%S', created_at_ms / 1000, 'unixepoch', 'localtime') AS created,
       CASE WHEN status = 'PENDING' OR status = 'PUBLISHING'
            THEN strftime('%Y-%m-%d %H:%M:%S', not_before_ms / 1000, 'unixepoch', 'localtime') END AS due,
       strftime('%Y-%m-%d %H:%M:%S', expires_at_ms / 1000, 'unixepoch', 'localtime') AS deadline
  FROM outbox WHERE closed_at_ms IS NULL;

-- What did not go as meant on this side. What the vendor refused or left open is in the inbox's v_trouble.
CREATE VIEW v_trouble AS
SELECT id, message_id, dedup_key, status, destination, kind, attempts, reason,
       strftime('%Y-%m-%d %H:%M:%S', updated_at_ms / 1000, 'unixepoch', 'localtime') AS since
  FROM outbox WHERE status IN ('PARKED', 'EXPIRED', 'SKIPPED')
UNION ALL
SELECT id, NULL, dedup_key, 'QUARANTINED', destination, kind, 0, reason || ': ' || first_message_id || ' stands',
       strftime('%Y-%m-%d %H:%M:%S', at_ms / 1000, 'unixepoch', 'localtime')
  FROM quarantine;

CREATE VIEW v_quarantine AS
SELECT id, dedup_key, first_message_id, kind, class, destination,
       CASE WHEN length(recipient) < 7 THEN '****' ELSE substr(recipient, 1, 3) || '****' || substr(recipient, -2) END AS recipient,
       length(CAST(payload AS BLOB)) AS payload_bytes, ordering_key, reason,
       strftime('%Y-%m-%d %H:%M:%S', at_ms / 1000, 'unixepoch', 'localtime') AS at
  FROM quarantine;

-- Since midnight of the shell's zone. FAILED here is what a person cancelled.
CREATE VIEW v_today AS
SELECT status, destination, count(*) AS messages,
       strftime('%H:%M:%S', max(updated_at_ms) / 1000, 'unixepoch', 'localtime') AS last
  FROM outbox
 WHERE updated_at_ms >= CAST(strftime('%s', 'now', 'localtime', 'start of day', 'utc') AS INTEGER) * 1000
 GROUP BY status, destination;

CREATE VIEW v_message AS
SELECT id, message_id, dedup_key, kind, class, destination,
       CASE WHEN length(recipient) < 7 THEN '****' ELSE substr(recipient, 1, 3) || '****' || substr(recipient, -2) END AS recipient,
       ordering_key, priority, status, attempts, reason, blocked, claimed_by,
       strftime('%Y-%m-%d %H:%M:%S', created_at_ms / 1000, 'unixepoch', 'localtime') AS created,
       strftime('%Y-%m-%d %H:%M:%S', not_before_ms / 1000, 'unixepoch', 'localtime') AS due,
       strftime('%Y-%m-%d %H:%M:%S', expires_at_ms / 1000, 'unixepoch', 'localtime') AS deadline,
       strftime('%Y-%m-%d %H:%M:%S', closed_at_ms / 1000, 'unixepoch', 'localtime') AS closed
  FROM outbox;

