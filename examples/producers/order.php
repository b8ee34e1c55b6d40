<?php
// One order and its message in one transaction: both are there, or neither. PHP's own SQLite3 class.
//
// Usage: php order.php APP.db ORDER_ID RECIPIENT

[, $path, $orderId, $recipient] = $argv;

$db = new SQLite3($path, SQLITE3_OPEN_READWRITE);
$db->enableExceptions(true);
$db->busyTimeout(30000);               // wait for whoever writes just now
$db->exec('PRAGMA synchronous = FULL'); // a power cut after COMMIT loses nothing

// Everything to be sent, at its value now: the message is not looked up later.
$payload = json_encode(['order' => (int) $orderId, 'text' => "Your order $orderId has arrived."], JSON_THROW_ON_ERROR);

$db->exec('BEGIN IMMEDIATE');
try {
    $order = $db->prepare('INSERT INTO orders (id, recipient) VALUES (:id, :recipient) ON CONFLICT (id) DO NOTHING');
    $order->bindValue(':id', (int) $orderId, SQLITE3_INTEGER);
    $order->bindValue(':recipient', $recipient, SQLITE3_TEXT);
    $order->execute();

    // One event is one dedup_key, made of business keys: running this again is harmless.
    $message = $db->prepare(
        "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES (:key, 'ORDER_RECEIVED', :recipient, :payload)
         ON CONFLICT (dedup_key) DO NOTHING"
    );
    $message->bindValue(':key', "ORDER_RECEIVED:$orderId", SQLITE3_TEXT);
    $message->bindValue(':recipient', $recipient, SQLITE3_TEXT);
    $message->bindValue(':payload', $payload, SQLITE3_TEXT);
    $message->execute();
    $db->exec('COMMIT');
} catch (Throwable $error) {
    @$db->exec('ROLLBACK');
    throw $error;
}
