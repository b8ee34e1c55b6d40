-- Step 1 of the inbox's road, as files of this version hold it. Never changed; the final shape is in schema.sql.
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

-- What vendors said later of what they took: once for each content, with counts of repeats. No number, no text.
-- A report waits here until its message has left SENDING; one whose message is not known stays, for people to see.
CREATE TABLE report (
  id          INTEGER PRIMARY KEY,
  consumer    TEXT NOT NULL,                        -- destination
  item        TEXT NOT NULL,                        -- what it is about: the vendor's id of one sent item '/' its medium
  message_id  TEXT NOT NULL,                        -- our reference as it was told; '' = none was told
  vendor_ref  TEXT,                                 -- the key of the answer to our call
  code        TEXT NOT NULL,                        -- the vendor's result code
  verdict     TEXT NOT NULL,                        -- what that code means
  meaning     TEXT NOT NULL,                        -- in words
  said_at_ms  INTEGER,                              -- the vendor's own time
  way         TEXT NOT NULL,                        -- how it came first
  counts      INTEGER NOT NULL,                     -- 0 = quarantined: contradicts an earlier one about the same item
  copies      INTEGER NOT NULL DEFAULT 1,
  first_at_ms INTEGER NOT NULL,
  last_at_ms  INTEGER NOT NULL,
  UNIQUE (consumer, item, code, message_id),
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
