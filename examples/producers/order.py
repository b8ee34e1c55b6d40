"""One order and its message in one transaction: both are there, or neither. Python's own sqlite3, nothing to install.

Usage: order.py APP.db ORDER_ID RECIPIENT
"""

import json
import sqlite3
import sys


def open_app(path):
    # isolation_level=None: BEGIN and COMMIT are ours; timeout: wait for whoever writes just now.
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")  # a power cut after COMMIT loses nothing
    return connection


def place_order(connection, order_id, recipient):
    # Everything to be sent, at its value now: the message is not looked up later.
    payload = json.dumps({"order": order_id, "text": f"Your order {order_id} has arrived."})
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "INSERT INTO orders (id, recipient) VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (order_id, recipient)
        )
        # One event is one dedup_key, made of business keys: running this again is harmless.
        connection.execute(
            "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES (?, 'ORDER_RECEIVED', ?, ?)"
            " ON CONFLICT (dedup_key) DO NOTHING",
            (f"ORDER_RECEIVED:{order_id}", recipient, payload),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


if __name__ == "__main__":
    path, order_id, recipient = sys.argv[1:]
    place_order(open_app(path), int(order_id), recipient)
