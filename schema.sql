-- The final shape of both databases.
--
-- Times are UTC milliseconds (`_ms`). State names are the same capitals everywhere.
-- The outbox part is read and written by any SQLite from 3.26 on (distribution shells, Python, PHP): no STRICT,
-- no generated columns, no RETURNING, no function newer than that in it.
-- State lists are chains of OR, not IN: SQLite builds a table for an IN list at each run of a trigger or CHECK.

-- part: outbox
-- Lives in outbox.db, or in an application's own file. Producers insert; the relay writes the rest.

CREATE TABLE onceward_meta (
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
  blocked          INTEGER NOT NULL DEFAULT 0,                 -- 1 = an earlier row of its ordering_key is not finished

  CONSTRAINT message_id_has_1_to_100_characters CHECK (typeof(message_id) = 'text' AND length(message_id) BETWEEN 1 AND 100),
  CONSTRAINT dedup_key_has_1_to_200_characters  CHECK (typeof(dedup_key) = 'text' AND length(dedup_key) BETWEEN 1 AND 200),
  CONSTRAINT kind_has_1_to_200_characters       CHECK (typeof(kind) = 'text' AND length(kind) BETWEEN 1 AND 200),
  CONSTRAINT class_is_transactional_or_advertising CHECK (class IN ('TRANSACTIONAL', 'ADVERTISING')),
  CONSTRAINT destination_has_at_most_40_characters CHECK (typeof(destination) = 'text' AND length(destination) <= 40),
  CONSTRAINT recipient_has_at_most_200_characters CHECK (typeof(recipient) = 'text' AND length(recipient) <= 200),
  CONSTRAINT payload_is_text_of_at_most_64_kib  CHECK (typeof(payload) = 'text' AND length(CAST(payload AS BLOB)) <= 65536),
  CONSTRAINT ordering_key_has_1_to_200_characters CHECK (ordering_key IS NULL OR (typeof(ordering_key) = 'text' AND length(ordering_key) BETWEEN 1 AND 200)),
  CONSTRAINT priority_is_0_to_9                 CHECK (typeof(priority) = 'integer' AND priority BETWEEN 0 AND 9),
  CONSTRAINT not_before_ms_is_an_integer        CHECK (typeof(not_before_ms) = 'integer'),
  CONSTRAINT expires_at_ms_is_an_integer        CHECK (expires_at_ms IS NULL OR typeof(expires_at_ms) = 'integer'),
  CONSTRAINT traceparent_has_at_most_200_characters CHECK (traceparent IS NULL OR length(traceparent) <= 200),
  CONSTRAINT status_is_known CHECK (status = 'PENDING' OR status = 'PUBLISHING' OR status = 'PUBLISHED' OR status = 'SKIPPED' OR status = 'EXPIRED' OR status = 'PARKED' OR status = 'HELD' OR status = 'FAILED'),
  CONSTRAINT attempts_is_a_count                CHECK (typeof(attempts) = 'integer' AND attempts >= 0),
  CONSTRAINT only_publishing_has_an_owner       CHECK ((status = 'PUBLISHING') = (claimed_by IS NOT NULL)),
  CONSTRAINT owner_and_lease_go_together        CHECK ((claimed_by IS NULL) = (claimed_until_ms IS NULL)),
  CONSTRAINT only_final_states_are_closed       CHECK ((status = 'PUBLISHED' OR status = 'SKIPPED' OR status = 'EXPIRED' OR status = 'FAILED') = (closed_at_ms IS NOT NULL)),
  CONSTRAINT blocked_is_0_or_1                  CHECK (blocked IN (0, 1))
);

-- the claim: one destination, `priority IN (0..9)`, due first; costs the same at any backlog
CREATE INDEX outbox_due ON outbox (destination, priority, not_before_ms) WHERE status = 'PENDING' AND blocked = 0;
CREATE INDEX outbox_claimed ON outbox (claimed_until_ms) WHERE status = 'PUBLISHING';
CREATE INDEX outbox_deadline ON outbox (expires_at_ms) WHERE status = 'PENDING' AND expires_at_ms IS NOT NULL;
CREATE INDEX outbox_stopped ON outbox (status, updated_at_ms) WHERE status IN ('PARKED', 'HELD');
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
     AND (first.kind IS NOT NEW.kind OR first.class IS NOT NEW.class OR first.recipient IS NOT NEW.recipient
          OR first.payload IS NOT NEW.payload OR first.ordering_key IS NOT NEW.ordering_key
          OR (NEW.destination <> '' AND first.destination <> '' AND first.destination IS NOT NEW.destination))
     AND NOT EXISTS (SELECT 1 FROM quarantine AS q
                      WHERE q.dedup_key = NEW.dedup_key AND q.kind IS NEW.kind AND q.class IS NEW.class
                        AND q.destination IS NEW.destination AND q.recipient IS NEW.recipient
                        AND q.payload IS NEW.payload AND q.ordering_key IS NEW.ordering_key);
  SELECT RAISE(IGNORE);
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
  OR (OLD.status = 'HELD' AND NEW.status = 'FAILED'))
BEGIN
  SELECT RAISE(ABORT, 'onceward: this change of status is not allowed; use onceward hold, release or cancel (and settle for ERROR)');
END;

-- What was promised to the customer is not edited: cancel the row and insert another under a new dedup_key. A closed
-- row's recipient and payload may be wiped (retention), nothing else.
CREATE TRIGGER outbox_facts BEFORE UPDATE OF id, message_id, dedup_key, kind, class, recipient, payload, ordering_key, created_at_ms ON outbox
WHEN OLD.id IS NOT NEW.id OR OLD.message_id IS NOT NEW.message_id OR OLD.dedup_key IS NOT NEW.dedup_key
  OR OLD.kind IS NOT NEW.kind OR OLD.class IS NOT NEW.class OR OLD.ordering_key IS NOT NEW.ordering_key
  OR OLD.created_at_ms IS NOT NEW.created_at_ms
  OR (OLD.payload IS NOT NEW.payload AND NOT (OLD.closed_at_ms IS NOT NULL AND NEW.payload = ''))
  OR (OLD.recipient IS NOT NEW.recipient AND NOT (OLD.closed_at_ms IS NOT NULL AND NEW.recipient = ''))
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

-- For people with a shell: readable times in the shell's own zone (set TZ to see another; the commands show the zone of
-- the settings), numbers masked as the commands mask them, no payload.
CREATE VIEW v_waiting AS
SELECT id, message_id, dedup_key, status, destination, kind, class, priority,
       CASE WHEN length(recipient) < 7 THEN '****' ELSE substr(recipient, 1, 3) || '****' || substr(recipient, -2) END AS recipient,
       attempts, reason, CASE WHEN blocked THEN 'behind an earlier row of its ordering_key' END AS waits,
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
-- Lives in inbox.db, the agent's own file; nobody else writes it.

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
  delivery       TEXT,                              -- what a report said: DELIVERED, UNDELIVERED
  claimed_by     TEXT NOT NULL,                     -- AGENT:START
  claimed_at_ms  INTEGER NOT NULL,
  finished_at_ms INTEGER,
  settled_by     TEXT,                              -- worker, start, sweeper, report, look-up, or a person
  UNIQUE (consumer, message_id),
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
  OR (OLD.status = 'ERROR' AND NEW.status = 'FAILED'))
BEGIN
  SELECT RAISE(ABORT, 'onceward: this change of status is not allowed; use onceward settle');
END;

CREATE TRIGGER inbox_facts BEFORE UPDATE OF consumer, message_id, fingerprint ON inbox
WHEN OLD.consumer <> NEW.consumer OR OLD.message_id <> NEW.message_id OR OLD.fingerprint <> NEW.fingerprint
BEGIN
  SELECT RAISE(ABORT, 'onceward: the inbox remembers what was sent; its facts are not edited');
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

-- What a person should know, by cause and destination.
CREATE TABLE alert (
  cause       TEXT NOT NULL,
  destination TEXT NOT NULL,
  count       INTEGER NOT NULL,
  first_at_ms INTEGER NOT NULL,
  last_at_ms  INTEGER NOT NULL,
  last_text   TEXT NOT NULL,
  PRIMARY KEY (cause, destination)
) STRICT, WITHOUT ROWID;

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
SELECT message_id, consumer AS destination, status, vendor_code, vendor_ref, reason, delivery, settled_by,
       strftime('%Y-%m-%d %H:%M:%S', claimed_at_ms / 1000, 'unixepoch', 'localtime') AS claimed,
       strftime('%Y-%m-%d %H:%M:%S', finished_at_ms / 1000, 'unixepoch', 'localtime') AS finished
  FROM inbox;
