-- The final shape of both databases. src/db/migrate.rs is the road to it; tests/it/schema.rs proves they meet and
-- that the CHECKs and triggers say what src/lifecycle.rs says. The third part is `once` for applications.
--
-- Times are UTC milliseconds (`_ms`). State names are the same capitals everywhere.
-- The outbox part is read and written by any SQLite from 3.26 on (distribution shells, Python, PHP): no STRICT,
-- no generated columns, no RETURNING, no function newer than that in it.
-- State lists are chains of OR, not IN: SQLite builds a table for an IN list at each run of a trigger or CHECK.

-- part: outbox
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

-- A second row under a known dedup_key: kept apart, never sent. Holds personal data like the outbox itself. Whether
-- another text of recipient or payload says the same (blanks in the JSON, a number with dashes), or what a wiped row had
-- said, SQL cannot tell: such a row is SAME_KEY_OTHER_TEXT until the agent has compared it, within seconds. The same: it
-- goes. Other content: SAME_KEY_OTHER_CONTENT, and an alert.
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
CREATE INDEX quarantine_compare ON quarantine (dedup_key) WHERE reason = 'SAME_KEY_OTHER_TEXT';

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
  AND (length(replace(replace(replace(replace(replace(NEW.recipient, '-', ''), ' ', ''), '(', ''), ')', ''), '.', '')) >= 7
       OR replace(replace(replace(replace(replace(NEW.recipient, '-', ''), ' ', ''), '(', ''), ')', ''), '.', '') LIKE '+%')
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

-- An opt-out is one of those that were inserted, in their one form: a change of what it covers is another opt-out.
CREATE TRIGGER suppress_is_not_edited BEFORE UPDATE OF recipient, destination, channel, class ON suppress
WHEN OLD.recipient IS NOT NEW.recipient OR OLD.destination IS NOT NEW.destination OR OLD.channel IS NOT NEW.channel
  OR OLD.class IS NOT NEW.class
BEGIN
  SELECT RAISE(ABORT, 'onceward: an opt-out is not edited; delete it and insert the other one');
END;

-- An opt-out that can never be found is refused: it looks like a number (no letter in it), but has characters that no
-- number is compared with (a dash or a digit of another script, a line break).
CREATE TRIGGER suppress_readable BEFORE INSERT ON suppress
WHEN length(NEW.recipient) >= 7
  AND NEW.recipient GLOB '*[^0-9+() .-]*'
  AND NEW.recipient NOT GLOB '*[A-Za-z@_#:À-῿぀-﫿]*'
BEGIN
  SELECT RAISE(ABORT, 'onceward: this recipient looks like a phone number that cannot be read; write it in digits with nothing but + - ( ) . and blanks');
END;

-- The same event again is harmless, whatever the statement (INSERT, OR IGNORE, OR REPLACE, DO UPDATE): the first row
-- stands. Anything else under the same key goes to quarantine, once per content.
CREATE TRIGGER outbox_same_key BEFORE INSERT ON outbox
WHEN EXISTS (SELECT 1 FROM outbox WHERE dedup_key = NEW.dedup_key)
BEGIN
  INSERT INTO quarantine (at_ms, dedup_key, first_message_id, kind, class, destination, recipient, payload, ordering_key, reason)
  SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER), NEW.dedup_key, first.message_id, NEW.kind,
         NEW.class, NEW.destination, NEW.recipient, NEW.payload, NEW.ordering_key,
         CASE WHEN first.kind IS NOT NEW.kind OR first.class IS NOT NEW.class OR first.ordering_key IS NOT NEW.ordering_key
                OR (NEW.destination <> '' AND first.destination <> '' AND first.destination IS NOT NEW.destination)
              THEN 'SAME_KEY_OTHER_CONTENT' ELSE 'SAME_KEY_OTHER_TEXT' END
    FROM outbox AS first
   WHERE first.dedup_key = NEW.dedup_key
     AND (first.kind IS NOT NEW.kind OR first.class IS NOT NEW.class OR first.ordering_key IS NOT NEW.ordering_key
          OR first.wiped_at_ms IS NOT NULL OR first.recipient IS NOT NEW.recipient OR first.payload IS NOT NEW.payload
          OR (NEW.destination <> '' AND first.destination <> '' AND first.destination IS NOT NEW.destination))
     AND NOT EXISTS (SELECT 1 FROM quarantine AS q
                      WHERE q.dedup_key = NEW.dedup_key AND q.kind IS NEW.kind AND q.class IS NEW.class
                        AND q.destination IS NEW.destination AND q.recipient IS NEW.recipient
                        AND q.payload IS NEW.payload AND q.ordering_key IS NEW.ordering_key);
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
WHEN OLD.reason <> 'SAME_KEY_OTHER_TEXT'
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

-- part: inbox
-- Lives in inbox.db, the agent's own file; nobody else writes it. The tables of the part `once` below stand there, too:
-- the vendors' reports are its events.

CREATE TABLE onceward_meta (
  key   TEXT PRIMARY KEY NOT NULL,   -- inbox_schema, agent_id, ...
  value TEXT NOT NULL
) STRICT;

-- One row per (destination, message): the guard against a second send.
CREATE TABLE inbox (
  id             INTEGER PRIMARY KEY,
  consumer       TEXT NOT NULL,                     -- destination
  message_id     TEXT NOT NULL,
  fingerprint    TEXT NOT NULL,                     -- version ':' hash of what is sent
  status         TEXT NOT NULL,
  vendor_code    TEXT,
  vendor_ref     TEXT,                              -- the vendor's own id
  reason         TEXT,
  delivery       TEXT,                              -- what reports said: DELIVERED, UNDELIVERED
  delivery_code  TEXT,                              -- and the vendor's result code for it
  claimed_by     TEXT NOT NULL,                     -- AGENT:START
  claimed_at_ms  INTEGER NOT NULL,
  finished_at_ms INTEGER,
  settled_by     TEXT,                              -- worker, start, sweeper, report, look-up, or a person
  -- by message_id first: a message has one destination, so whoever looks asks for the id alone
  UNIQUE (message_id, consumer),
  CONSTRAINT status_is_known CHECK (status = 'SENDING' OR status = 'SENT' OR status = 'FAILED' OR status = 'ERROR'),
  CONSTRAINT delivery_is_known CHECK (delivery IS NULL OR delivery IN ('DELIVERED', 'UNDELIVERED')),
  CONSTRAINT only_sending_is_unfinished CHECK ((status = 'SENDING') = (finished_at_ms IS NULL))
) STRICT;
CREATE INDEX inbox_sending ON inbox (claimed_at_ms) WHERE status = 'SENDING';
CREATE INDEX inbox_error ON inbox (finished_at_ms) WHERE status = 'ERROR';

CREATE TRIGGER inbox_move BEFORE UPDATE OF status ON inbox
WHEN OLD.status <> NEW.status AND NOT (
  (OLD.status = 'SENDING' AND NEW.status = 'SENT')
  OR (OLD.status = 'SENDING' AND NEW.status = 'FAILED')
  OR (OLD.status = 'SENDING' AND NEW.status = 'ERROR')
  OR (OLD.status = 'ERROR' AND NEW.status = 'SENT')
  OR (OLD.status = 'ERROR' AND NEW.status = 'FAILED')
  OR (OLD.status = 'FAILED' AND NEW.status = 'SENT'))
BEGIN
  SELECT RAISE(ABORT, 'onceward: this change of status is not allowed; use onceward settle');
END;

CREATE TRIGGER inbox_facts BEFORE UPDATE OF consumer, message_id, fingerprint ON inbox
WHEN OLD.consumer <> NEW.consumer OR OLD.message_id <> NEW.message_id OR OLD.fingerprint <> NEW.fingerprint
BEGIN
  SELECT RAISE(ABORT, 'onceward: the inbox remembers what was sent; its facts are not edited');
END;

-- Rows that are gone, by destination and the state they had; kept by the trigger in the very transaction. SENDING rows
-- that go are claims given back on proof, and the message is still the outbox's: not counted here.
CREATE TABLE inbox_ledger (
  consumer TEXT NOT NULL,
  what     TEXT NOT NULL,
  count    INTEGER NOT NULL,
  PRIMARY KEY (consumer, what)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER inbox_deleted AFTER DELETE ON inbox
WHEN OLD.status <> 'SENDING'
BEGIN
  INSERT INTO inbox_ledger (consumer, what, count) VALUES (OLD.consumer, OLD.status, 1)
  ON CONFLICT (consumer, what) DO UPDATE SET count = count + 1;
END;

-- One line per vendor call, also of claims that were released.
CREATE TABLE attempt (
  id            INTEGER PRIMARY KEY,
  consumer      TEXT NOT NULL,
  message_id    TEXT NOT NULL,
  started_at_ms INTEGER NOT NULL,
  waiting_us    INTEGER NOT NULL,                   -- from due to the call
  connecting_us INTEGER NOT NULL,
  answering_us  INTEGER NOT NULL,
  outcome       TEXT NOT NULL,
  http_status   INTEGER,
  vendor_code   TEXT,
  reason        TEXT,
  claimed_by    TEXT NOT NULL,
  traceparent   TEXT,
  CONSTRAINT outcome_is_known CHECK (outcome = 'ACCEPTED' OR outcome = 'REJECTED' OR outcome = 'NOT_SENT' OR outcome = 'UNKNOWN')
) STRICT;
CREATE INDEX attempt_message ON attempt (message_id);

-- Ends per local day, kept in the same commit as the end itself: today's figures without a scan of history.
CREATE TABLE tally (
  day      TEXT NOT NULL,
  consumer TEXT NOT NULL,
  what     TEXT NOT NULL,
  count    INTEGER NOT NULL,
  PRIMARY KEY (day, consumer, what)
) STRICT, WITHOUT ROWID;

-- Applications' own files that the agent serves beside outbox.db (`onceward source`); state is what the agent saw last.
CREATE TABLE source (
  name        TEXT PRIMARY KEY NOT NULL,
  file        TEXT NOT NULL UNIQUE,                 -- absolute, without symbolic links
  source_id   TEXT NOT NULL UNIQUE,                 -- as in the file's onceward_meta: another file or a copy is noticed
  added_at_ms INTEGER NOT NULL,
  state       TEXT NOT NULL,                        -- NEW, OK, MISSING, LOCKED, ...
  reason      TEXT,
  since_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How each destination stands, kept over restarts: closed, waiting, paused by an operator. No row = open.
CREATE TABLE destination (
  name            TEXT NOT NULL PRIMARY KEY,
  closed_since_ms INTEGER,                          -- set while closed
  pause_ms        INTEGER NOT NULL DEFAULT 0,       -- present pause between two probes
  next_try_ms     INTEGER,                          -- next probe, or the end of a pause it asked for
  reason          TEXT,                             -- why it is closed or waits
  paused          TEXT,                             -- an operator's reason, set while paused
  paused_by       TEXT,
  paused_at_ms    INTEGER,
  changed_at_ms   INTEGER NOT NULL,
  CONSTRAINT a_pause_has_all_three CHECK ((paused IS NULL) = (paused_by IS NULL) AND (paused IS NULL) = (paused_at_ms IS NULL))
) STRICT, WITHOUT ROWID;

-- What a person should know, by cause and destination. A count only grows.
CREATE TABLE alert (
  cause         TEXT NOT NULL,
  destination   TEXT NOT NULL,                      -- or a part of the agent; '' = the agent itself
  count         INTEGER NOT NULL,                   -- raised so far
  first_at_ms   INTEGER NOT NULL,                   -- when it was opened, the last time
  last_at_ms    INTEGER NOT NULL,                   -- raised last
  last_text     TEXT NOT NULL,
  open          INTEGER NOT NULL,                   -- 1 = it lasts; 0 = over, or an event without an end
  cleared_at_ms INTEGER,
  PRIMARY KEY (cause, destination),
  CONSTRAINT open_is_0_or_1 CHECK (open IN (0, 1))
) STRICT, WITHOUT ROWID;

-- What each hook was told of it: it is due a notice while its count is behind, or an all-clear while only `open` is.
CREATE TABLE alert_told (
  hook        TEXT NOT NULL,                        -- journal, webhook, command
  cause       TEXT NOT NULL,
  destination TEXT NOT NULL,
  count       INTEGER NOT NULL,                     -- the alert's count at that time
  open        INTEGER NOT NULL,                     -- it was told that it lasts
  at_ms       INTEGER,                              -- NULL = never told
  PRIMARY KEY (hook, cause, destination)
) STRICT, WITHOUT ROWID;

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
) STRICT;
CREATE INDEX audit_target ON audit (target);

CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit
BEGIN
  SELECT RAISE(ABORT, 'onceward: the audit is not edited');
END;

-- What vendors said later of what they took: once for each content, with counts of repeats. No number, no text. Each is
-- the effect of an event of `once` (part once, which this file holds too): its marker says that it is known, and names
-- the row. A report waits here until its message has left SENDING; one whose message is not known stays, for people.
CREATE TABLE report (
  id          INTEGER PRIMARY KEY,
  account     TEXT NOT NULL,                        -- the destination to which it was told: whose events it belongs to
  consumer    TEXT NOT NULL,                        -- the destination of the message it is about
  item        TEXT NOT NULL,                        -- what it is about: the vendor's id of one sent item '/' its medium
  message_id  TEXT NOT NULL,                        -- our reference as it was told; '' = none was told
  vendor_ref  TEXT,                                 -- the key of the answer to our call
  code        TEXT NOT NULL,                        -- the vendor's result code
  verdict     TEXT NOT NULL,                        -- what that code means
  meaning     TEXT NOT NULL,                        -- in words
  said_at_ms  INTEGER,                              -- the vendor's own time
  way         TEXT NOT NULL,                        -- how it came first
  counts      INTEGER NOT NULL,                     -- 0 = contradicts an earlier end of its item: see onceward_once_quarantine
  copies      INTEGER NOT NULL DEFAULT 1,
  first_at_ms INTEGER NOT NULL,
  last_at_ms  INTEGER NOT NULL,
  CONSTRAINT verdict_is_known CHECK (verdict IN ('DELIVERED', 'UNDELIVERED', 'UNCERTAIN', 'UNLISTED')),
  CONSTRAINT way_is_known CHECK (way IN ('WEBHOOK', 'POLL')),
  CONSTRAINT counts_is_0_or_1 CHECK (counts IN (0, 1))
) STRICT;
CREATE INDEX report_message ON report (consumer, message_id) WHERE message_id <> '';

-- Where a vendor's look-up has been asked about an ERROR: the pauses survive a restart, and `show` tells it.
CREATE TABLE inquiry (
  consumer   TEXT NOT NULL,
  message_id TEXT NOT NULL,
  asked      INTEGER NOT NULL,                      -- times
  last_at_ms INTEGER NOT NULL,
  next_at_ms INTEGER,                               -- NULL = not again: left to a person
  last_said  TEXT NOT NULL,
  PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;

-- ERROR rows proven *not sent*: their inbox row went in this very commit, their outbox row still has to open again.
CREATE TABLE rearm (
  consumer   TEXT NOT NULL,
  message_id TEXT NOT NULL,
  times      INTEGER NOT NULL,
  by         TEXT NOT NULL,
  at_ms      INTEGER NOT NULL,
  done_at_ms INTEGER,                               -- NULL = the outbox row has not been opened yet
  PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX rearm_open ON rearm (at_ms) WHERE done_at_ms IS NULL;

CREATE VIEW v_trouble AS
SELECT message_id, consumer AS destination, status, vendor_code, reason, settled_by,
       strftime('%Y-%m-%d %H:%M:%S', coalesce(finished_at_ms, claimed_at_ms) / 1000, 'unixepoch', 'localtime') AS since
  FROM inbox WHERE status IN ('ERROR', 'FAILED', 'SENDING');

CREATE VIEW v_waiting AS
SELECT message_id, consumer AS destination, status, claimed_by,
       strftime('%Y-%m-%d %H:%M:%S', claimed_at_ms / 1000, 'unixepoch', 'localtime') AS claimed
  FROM inbox WHERE status = 'SENDING';

-- The newest day with an end, by the zone of the settings (the day is named: it may be yesterday's).
CREATE VIEW v_today AS
SELECT day, consumer AS destination, what, count FROM tally WHERE day = (SELECT max(day) FROM tally);

CREATE VIEW v_message AS
SELECT message_id, consumer AS destination, status, vendor_code, vendor_ref, reason, delivery, delivery_code, settled_by,
       strftime('%Y-%m-%d %H:%M:%S', claimed_at_ms / 1000, 'unixepoch', 'localtime') AS claimed,
       strftime('%Y-%m-%d %H:%M:%S', finished_at_ms / 1000, 'unixepoch', 'localtime') AS finished
  FROM inbox;

CREATE VIEW v_report AS
SELECT report.message_id, report.consumer AS destination, report.code, report.verdict, report.meaning, report.way,
       report.copies, inbox.status,
       CASE WHEN report.counts = 0 THEN 'QUARANTINED' WHEN inbox.id IS NULL THEN 'UNMATCHED'
            WHEN inbox.status = 'SENDING' THEN 'WAITING' ELSE 'APPLIED' END AS fate,
       strftime('%Y-%m-%d %H:%M:%S', report.first_at_ms / 1000, 'unixepoch', 'localtime') AS first
  FROM report LEFT JOIN inbox ON inbox.consumer = report.consumer AND inbox.message_id = report.message_id;
-- part: once
-- Lives in an application's own file, beside its business tables: which events a consumer has taken, with the result.
-- And in inbox.db, where the consumers are the accounts whose vendors report.
-- Written by src/store/once.rs alone, in the same transaction as the effect. Any SQLite from 3.26 on, any journal mode.

CREATE TABLE IF NOT EXISTS onceward_meta (
  key   TEXT PRIMARY KEY NOT NULL,   -- once_schema, ...
  value TEXT NOT NULL
);

-- The marker: an event of this consumer was applied, and this came of it.
CREATE TABLE onceward_once (
  id              INTEGER PRIMARY KEY,
  consumer        TEXT NOT NULL,     -- namespace: two consumers of one event each apply it once
  event_id        TEXT NOT NULL,     -- the logical event, the same in every delivery
  fingerprint     TEXT NOT NULL,     -- version ':' hash of the content; only equal versions are compared
  effect_key      TEXT,              -- the right that exists once, e.g. account/season/reward (see onceward_once_effect)
  corrects        TEXT,              -- event_id of the event that this one corrects
  occurred_at_ms  INTEGER,           -- the event's own time; retention goes by it
  processed_at_ms INTEGER NOT NULL,
  result          TEXT,              -- JSON, given again at each redelivery; NULL only inside the transaction
  UNIQUE (consumer, event_id),
  CONSTRAINT consumer_has_1_to_200_characters   CHECK (typeof(consumer) = 'text' AND length(consumer) BETWEEN 1 AND 200),
  CONSTRAINT event_id_has_1_to_200_characters   CHECK (typeof(event_id) = 'text' AND length(event_id) BETWEEN 1 AND 200),
  CONSTRAINT effect_key_has_1_to_200_characters CHECK (effect_key IS NULL OR (typeof(effect_key) = 'text' AND length(effect_key) BETWEEN 1 AND 200)),
  CONSTRAINT occurred_at_ms_is_an_integer       CHECK (occurred_at_ms IS NULL OR typeof(occurred_at_ms) = 'integer')
);
CREATE INDEX onceward_once_age ON onceward_once (consumer, occurred_at_ms) WHERE occurred_at_ms IS NOT NULL;

CREATE TRIGGER onceward_once_facts BEFORE UPDATE ON onceward_once
WHEN OLD.consumer IS NOT NEW.consumer OR OLD.event_id IS NOT NEW.event_id OR OLD.fingerprint IS NOT NEW.fingerprint
  OR OLD.effect_key IS NOT NEW.effect_key OR OLD.corrects IS NOT NEW.corrects
  OR OLD.occurred_at_ms IS NOT NEW.occurred_at_ms OR OLD.processed_at_ms IS NOT NEW.processed_at_ms
  OR OLD.result IS NOT NULL
BEGIN
  SELECT RAISE(ABORT, 'onceward: what was applied is not edited; send an event that corrects it');
END;

-- Business rights that were used up. Outlives the markers: a replay under another event_id finds it.
CREATE TABLE onceward_once_effect (
  consumer   TEXT NOT NULL,
  effect_key TEXT NOT NULL,
  event_id   TEXT NOT NULL,          -- who used it
  at_ms      INTEGER NOT NULL,       -- the event's own time, or when it was applied
  PRIMARY KEY (consumer, effect_key)
) WITHOUT ROWID;

-- How far back a consumer's memory reaches: an unknown event from before is refused, for it may have been applied.
CREATE TABLE onceward_once_horizon (
  consumer  TEXT PRIMARY KEY NOT NULL,
  before_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- Deliveries that were refused: ids and hashes alone, no content. A person compares them with the publisher's ledger.
CREATE TABLE onceward_once_quarantine (
  id                INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer          TEXT NOT NULL,
  event_id          TEXT NOT NULL,
  reason            TEXT NOT NULL,
  fingerprint       TEXT NOT NULL,   -- of the refused delivery
  first_event_id    TEXT,            -- the event that stands, where there is one
  first_fingerprint TEXT,
  occurred_at_ms    INTEGER,
  first_at_ms       INTEGER NOT NULL,
  last_at_ms        INTEGER NOT NULL,
  count             INTEGER NOT NULL DEFAULT 1, -- the same refusal again only counts
  UNIQUE (consumer, event_id, reason, fingerprint),
  CONSTRAINT reason_is_known CHECK (reason = 'SAME_EVENT_OTHER_CONTENT' OR reason = 'SAME_EFFECT_OTHER_EVENT' OR reason = 'TOO_OLD' OR reason = 'NO_TIME')
);
