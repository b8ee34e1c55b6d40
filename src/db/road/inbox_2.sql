-- Step 2 of the inbox's road: reports are taken in by `once`. Its tables were made right before this. Every report that is
-- known gets its marker, and every item that ended another, so that what was a repeat or a contradiction before stays
-- one. Fingerprints of version 0 are compared with nothing: these ids say it all.

DROP VIEW v_report;
DROP INDEX report_message;
ALTER TABLE report RENAME TO report_1;
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
INSERT INTO report (id, account, consumer, item, message_id, vendor_ref, code, verdict, meaning, said_at_ms, way, counts,
                    copies, first_at_ms, last_at_ms)
SELECT id, consumer, consumer, item, message_id, vendor_ref, code, verdict, meaning, said_at_ms, way, counts, copies,
       first_at_ms, last_at_ms FROM report_1;
DROP TABLE report_1;
CREATE INDEX report_message ON report (consumer, message_id) WHERE message_id <> '';

CREATE VIEW v_report AS
SELECT report.message_id, report.consumer AS destination, report.code, report.verdict, report.meaning, report.way,
       report.copies, inbox.status,
       CASE WHEN report.counts = 0 THEN 'QUARANTINED' WHEN inbox.id IS NULL THEN 'UNMATCHED'
            WHEN inbox.status = 'SENDING' THEN 'WAITING' ELSE 'APPLIED' END AS fate,
       strftime('%Y-%m-%d %H:%M:%S', report.first_at_ms / 1000, 'unixepoch', 'localtime') AS first
  FROM report LEFT JOIN inbox ON inbox.consumer = report.consumer AND inbox.message_id = report.message_id;

-- As `report::event` and `report::end` name them. What is longer can no longer come in.
INSERT INTO onceward_once (consumer, event_id, fingerprint, processed_at_ms, result)
SELECT 'report:' || account, item || '/' || code || '/' || message_id, '0:known', first_at_ms, CAST(id AS TEXT)
  FROM report WHERE length(item || '/' || code || '/' || message_id) <= 200
ON CONFLICT (consumer, event_id) DO NOTHING;

INSERT INTO onceward_once (consumer, event_id, fingerprint, processed_at_ms, result)
SELECT 'report-end:' || account, item, '1:' || verdict || ' ' || message_id, first_at_ms, 'null'
  FROM report
 WHERE id IN (SELECT min(id) FROM report
               WHERE counts = 1 AND verdict IN ('DELIVERED', 'UNDELIVERED') AND message_id <> '' GROUP BY account, item)
   AND length(item) <= 200
ON CONFLICT (consumer, event_id) DO NOTHING;
