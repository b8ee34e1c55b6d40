// One order and its message in one transaction: both are there, or neither. Node's own node:sqlite (from 22.5 on).
//
// Usage: node order.mjs APP.db ORDER_ID RECIPIENT

import { DatabaseSync } from 'node:sqlite';

const [path, orderId, recipient] = process.argv.slice(2);

const db = new DatabaseSync(path);
db.exec('PRAGMA busy_timeout = 30000; PRAGMA synchronous = FULL'); // wait for writers; survive a power cut

// Everything to be sent, at its value now: the message is not looked up later.
const payload = JSON.stringify({ order: Number(orderId), text: `Your order ${orderId} has arrived.` });

db.exec('BEGIN IMMEDIATE');
try {
  db.prepare('INSERT INTO orders (id, recipient) VALUES (?, ?) ON CONFLICT (id) DO NOTHING').run(Number(orderId), recipient);
  // One event is one dedup_key, made of business keys: running this again is harmless.
  db.prepare(
    `INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES (?, 'ORDER_RECEIVED', ?, ?)
     ON CONFLICT (dedup_key) DO NOTHING`,
  ).run(`ORDER_RECEIVED:${orderId}`, recipient, payload);
  db.exec('COMMIT');
} catch (error) {
  try {
    db.exec('ROLLBACK');
  } catch {
    // the failure itself has rolled back
  }
  throw error;
}
