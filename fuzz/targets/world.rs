//! What several targets need: settings of two destinations, tables in memory, and the rules that every text for people keeps.

use std::path::Path;
use std::sync::OnceLock;

use rusqlite::Connection;

use crate::config::{
    BizPpurioSettings, DestinationSettings, FormOnly, HttpSettings, LookUpSettings, Settings, VendorSettings,
};
use crate::db::Part;
use crate::db::migrate::schema;
use crate::message::{Class, Destination, Message, MessageId};

/// What a secret or a text is begun with to find it where it must not be.
pub(super) const MARK: &str = "Zq9mark";

/// Two destinations with every kind of rule.
const SETTINGS: &str = r#"
[[destination]]
name = "gateway"
type = "http"
url = "http://127.0.0.1:9/send"
reference_header = "X-Reference"
accepted = { status = ["2xx"], json = "/code", equals = [1000] }
rejected = { status = [400, 422] }
not_sent = { status = [401, 403, 429] }
vendor_ref = "/id"
[destination.lookup]
url = "http://127.0.0.1:9/what/{message_id}"
accepted = { status = [200], json = "/state", equals = ["taken"] }
rejected = { status = [200], json = "/state", equals = ["refused", 9] }
never_received = { status = [200, 404], json = "/state", equals = ["never"] }
[[destination]]
name = "biz"
type = "bizppurio"
url = "http://127.0.0.1:9"
account = "branch01"
password = "env:NOTHING"
from = "0212345678"
[[route]]
kind = "GRADE_*"
destination = "biz"
[[route]]
kind = "*"
destination = "gateway"
"#;

/// The settings, read once.
pub(super) fn settings() -> &'static Settings {
    static READ: OnceLock<Settings> = OnceLock::new();
    READ.get_or_init(|| match Settings::from_text(SETTINGS, Path::new("x.toml"), &FormOnly) {
        Ok(settings) => settings,
        Err(error) => panic!("{error}"),
    })
}

fn destination(name: &str) -> &'static DestinationSettings {
    match settings().destinations.iter().find(|destination| destination.name == name) {
        Some(destination) => destination,
        None => panic!("no destination {name}"),
    }
}

/// The rules of the generic destination.
pub(super) fn gateway() -> &'static HttpSettings {
    match &destination("gateway").vendor {
        VendorSettings::Http(settings) => settings,
        VendorSettings::BizPpurio(_) => panic!("gateway is generic"),
    }
}

/// Its look-up.
pub(super) fn look_up() -> &'static LookUpSettings {
    match &gateway().lookup {
        Some(look_up) => look_up,
        None => panic!("gateway has a look-up"),
    }
}

/// The other one.
pub(super) fn biz() -> &'static BizPpurioSettings {
    match &destination("biz").vendor {
        VendorSettings::BizPpurio(settings) => settings,
        VendorSettings::Http(_) => panic!("biz is BizPpurio's"),
    }
}

/// The tables of a file, in memory.
pub(super) fn tables(part: Part) -> Connection {
    let made = Connection::open_in_memory().and_then(|connection| {
        connection.execute_batch(schema(part))?;
        Ok(connection)
    });
    match made {
        Ok(connection) => connection,
        Err(error) => panic!("the schema does not load: {error}"),
    }
}

/// A message with this recipient and payload.
pub(super) fn message(destination: &str, recipient: &str, payload: &str) -> Message {
    Message {
        message_id: MessageId::new("ow-0192a7c3e4f0123456789abcdef0"),
        dedup_key: "KEY:1".into(),
        kind: "TEST".into(),
        class: Class::Transactional,
        destination: Destination::new(destination),
        recipient: recipient.to_owned(),
        payload: payload.to_owned(),
        ordering_key: None,
        priority: 5,
        not_before_ms: 0,
        expires_at_ms: None,
        created_at_ms: 0,
        traceparent: None,
    }
}

/// Digits of `input` in a row that could be a number of somebody, and stand in `text` too.
#[track_caller]
pub(super) fn tells_no_number(text: &str, input: &str) {
    const LONG: usize = 7;
    for run in text.split(|character: char| !character.is_ascii_digit()).filter(|run| run.len() >= LONG) {
        assert!(!input.contains(run), "a number of the input stands in: {text:?}");
    }
}

/// One line, without what steers a terminal.
#[track_caller]
pub(super) fn is_plain(text: &str) {
    assert!(!text.contains(char::is_control), "a control character in: {text:?}");
}

/// Splits off the first line.
pub(super) fn line(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}
