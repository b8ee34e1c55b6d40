#!/bin/sh
# One order and its message in one transaction: both are there, or neither. The distribution's sqlite3 shell.
#
# Usage: order.sh APP.db ORDER_ID RECIPIENT
set -eu

quoted() { printf %s "$1" | sed "s/'/''/g"; }

case $2 in '' | *[!0-9]*) echo "order.sh: ORDER_ID must be a number" >&2; exit 64 ;; esac
recipient=$(quoted "$3")

# -bail: the first error ends it, and what was begun is rolled back.
sqlite3 -batch -bail "$1" <<SQL
.timeout 30000
PRAGMA synchronous = FULL;
BEGIN IMMEDIATE;
INSERT INTO orders (id, recipient) VALUES ($2, '$recipient') ON CONFLICT (id) DO NOTHING;
INSERT INTO outbox (dedup_key, kind, recipient, payload)
VALUES ('ORDER_RECEIVED:$2', 'ORDER_RECEIVED', '$recipient', '{"order":$2,"text":"Your order $2 has arrived."}')
ON CONFLICT (dedup_key) DO NOTHING;
COMMIT;
SQL
