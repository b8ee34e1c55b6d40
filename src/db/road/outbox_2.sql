-- From version 1 of the outbox to 2: repeats in another text wait in quarantine for the agent to compare them, and
-- opt-outs that could never be found are refused. Never changed once released.

DROP TRIGGER outbox_same_key;
DROP TRIGGER quarantine_deleted;
DROP TRIGGER suppress_canonical;
INSERT INTO quarantine (at_ms, dedup_key, first_message_id, kind, class, destination, recipient, payload, ordering_key, reason)
SELECT r.at_ms, r.dedup_key, coalesce(first.message_id, '(purged)'), r.kind, r.class, r.destination, r.recipient, r.payload,
       r.ordering_key, 'SAME_KEY_OTHER_TEXT'
  FROM outbox_recheck AS r LEFT JOIN outbox AS first ON first.dedup_key = r.dedup_key;
DROP TABLE outbox_recheck;
CREATE INDEX quarantine_compare ON quarantine (dedup_key) WHERE reason = 'SAME_KEY_OTHER_TEXT';
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

CREATE TRIGGER quarantine_deleted AFTER DELETE ON quarantine
WHEN OLD.reason <> 'SAME_KEY_OTHER_TEXT'
BEGIN
  UPDATE outbox_ledger SET count = count + 1 WHERE what = 'QUARANTINED';
END;

CREATE TRIGGER suppress_readable BEFORE INSERT ON suppress
WHEN length(NEW.recipient) >= 7
  AND NEW.recipient GLOB '*[^0-9+() .-]*'
  AND NEW.recipient NOT GLOB '*[A-Za-z@_#:À-῿぀-﫿]*'
BEGIN
  SELECT RAISE(ABORT, 'onceward: this recipient looks like a phone number that cannot be read; write it in digits with nothing but + - ( ) . and blanks');
END;

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
