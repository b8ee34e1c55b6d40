//! Body templates of the generic adapter: one compiled template over a row's fields.
//!
//! Its one promise beyond filling in: what comes from a row can never change the structure of the body. In JSON
//! each inserted piece is marked while rendering, and a walk over the result sees where it stands: a text is
//! escaped inside quotes and gets its own quotes outside of them, so `"{{ recipient }}"` and `{{ recipient }}` are
//! both right; an object, list or null can only stand outside. It never sends, and its errors never hold a value.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, UndefinedBehavior};

use crate::message::Message;
use crate::vendor::Unfit;

/// Marks around inserted pieces while rendering. Control characters cannot be part of JSON, so data never
/// contains them once escaped, and a template that contains one is refused.
const TEXT: char = '\u{1}';
const STRUCTURE: char = '\u{2}';
const SCALAR: char = '\u{3}';
const END: char = '\u{4}';
const MARKS: [char; 4] = [TEXT, STRUCTURE, SCALAR, END];

/// How inserted values are escaped, decided by the content type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Escaping {
    /// Inside quotes as JSON text; objects and lists as JSON.
    Json,
    /// Percent-encoded (`application/x-www-form-urlencoded`).
    Form,
    /// `&amp;` and the like (XML and HTML).
    Markup,
    /// Not at all.
    Plain,
}

impl Escaping {
    /// By the media type, parameters ignored.
    pub fn of(content_type: &str) -> Self {
        let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match media.as_str() {
            "application/json" | "text/json" => Escaping::Json,
            "application/x-www-form-urlencoded" => Escaping::Form,
            _ if media.ends_with("+json") => Escaping::Json,
            _ if media.ends_with("xml") || media.ends_with("html") => Escaping::Markup,
            _ => Escaping::Plain,
        }
    }
}

/// A compiled template.
pub struct Template {
    environment: Environment<'static>,
    escaping: Escaping,
}

impl Template {
    /// Compiles; the error names the line and never the content.
    pub fn compile(source: &str, escaping: Escaping) -> Result<Self, String> {
        if source.contains(MARKS) {
            return Err("body: the template contains a control character".to_owned());
        }
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // The escaping itself is the formatter's; this makes the engine treat what `set` captures as done.
        environment.set_auto_escape_callback(|_| AutoEscape::Custom("row".into()));
        environment.set_formatter(move |output, _, value| insert(output, value, escaping));
        // No way around the escaping, not even on purpose.
        for filter in ["safe", "escape", "e"] {
            environment.remove_filter(filter);
        }
        environment.add_filter("tojson", move |value: Value| to_json(&value, escaping));
        environment
            .add_template_owned("body", source.to_owned())
            .map_err(|error| format!("body: {}", without_values(&error)))?;
        Ok(Self { environment, escaping })
    }

    /// Fills in one message. `Unfit` for a missing field, a payload that is not JSON, a value at a place where
    /// it would change the structure, and a result that is not JSON where the content type says so.
    pub fn render(&self, message: &Message) -> Result<Vec<u8>, Unfit> {
        let unfit = |reason: String| Unfit { reason };
        let payload: serde_json::Value = serde_json::from_str(&message.payload)
            .map_err(|error| unfit(format!("payload is not JSON: {}", place(&error))))?;
        let row = minijinja::context! {
            message_id => message.message_id.as_str(),
            dedup_key => message.dedup_key.as_str(),
            kind => message.kind.as_str(),
            class => message.class.as_str(),
            recipient => message.recipient.as_str(),
            priority => message.priority,
            created_at_ms => message.created_at_ms,
            payload => for_template(&payload),
        };
        let rendered =
            self.environment.get_template("body").and_then(|template| template.render(row)).map_err(
                |error| unfit(format!("the body template does not fit: {}", without_values(&error))),
            )?;
        if self.escaping != Escaping::Json {
            return Ok(rendered.into_bytes());
        }
        let body = walk(&rendered).map_err(|problem| unfit(format!("the body template: {problem}")))?;
        match serde_json::from_str::<serde::de::IgnoredAny>(&body) {
            Ok(_) => Ok(body.into_bytes()),
            Err(error) => Err(unfit(format!("the body template did not give JSON: {}", place(&error)))),
        }
    }
}

/// Where a JSON text is wrong, without quoting it.
pub fn place(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

/// Kind and line of a template error; its detail could repeat a value.
fn without_values(error: &Error) -> String {
    let what = match error.kind() {
        ErrorKind::UndefinedError => "a field is missing".to_owned(),
        ErrorKind::BadSerialization => "a value cannot stand at this place".to_owned(),
        kind => kind.to_string(),
    };
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

/// Writes one inserted value.
fn insert(output: &mut Output, value: &Value, escaping: Escaping) -> Result<(), Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    // What `tojson` made, and blocks captured with `set`: escaped and marked already.
    if value.is_safe()
        && let Some(text) = value.as_str()
    {
        return write(output, text);
    }
    if escaping == Escaping::Json {
        return write(output, &marked(value)?);
    }
    let text = match value.kind() {
        ValueKind::String | ValueKind::Number | ValueKind::Bool => value.to_string(),
        _ => return Err(Error::from(ErrorKind::BadSerialization)),
    };
    match escaping {
        Escaping::Form => write(output, &percent(&text)),
        Escaping::Markup => write(output, &markup(&text)),
        Escaping::Json | Escaping::Plain => write(output, &text),
    }
}

/// JSON as a template's value.
fn for_template(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (None, Some(large)) => Value::from(large),
            (None, None) => Value::from(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(list) => list.iter().map(for_template).collect::<Vec<_>>().into(),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), for_template(value))))
        }
    }
}

fn write(output: &mut Output, text: &str) -> Result<(), Error> {
    output.write_str(text).map_err(|_| Error::from(ErrorKind::WriteFailure))
}

/// The `tojson` filter: a whole JSON value, quotes included.
fn to_json(value: &Value, escaping: Escaping) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let json = serde_json::to_string(value).map_err(|_| Error::from(ErrorKind::BadSerialization))?;
    Ok(match escaping {
        Escaping::Json => Value::from_safe_string(format!("{STRUCTURE}{json}{END}")),
        // Elsewhere JSON is text like any other and still has to be escaped.
        _ => Value::from(json),
    })
}

fn marked(value: &Value) -> Result<String, Error> {
    // Escaped text that was captured with `set` and then joined with other text, so that it would be escaped twice;
    // or data with such characters, which no receiver can mean.
    if value.as_str().is_some_and(|text| text.contains(MARKS)) {
        return Err(Error::from(ErrorKind::BadSerialization));
    }
    let json = serde_json::to_string(value).map_err(|_| Error::from(ErrorKind::BadSerialization))?;
    Ok(match value.kind() {
        ValueKind::String => format!("{TEXT}{}{END}", &json[1..json.len() - 1]),
        ValueKind::Number | ValueKind::Bool => format!("{SCALAR}{json}{END}"),
        _ => format!("{STRUCTURE}{json}{END}"),
    })
}

/// Takes the marks out and makes sure that each piece stands where it cannot break out.
fn walk(rendered: &str) -> Result<String, &'static str> {
    let mut body = String::with_capacity(rendered.len() + 16);
    let mut inside_quotes = false;
    let mut piece = None;
    let mut escaped = false;
    for character in rendered.chars() {
        match (character, piece) {
            (TEXT | STRUCTURE | SCALAR, _) if piece.is_some() || escaped => {
                return Err("a value stands right after a backslash or inside another value");
            }
            (STRUCTURE, _) if inside_quotes => return Err("an object, list or null stands inside quotes"),
            (TEXT | STRUCTURE | SCALAR, _) => {
                piece = Some(character);
                if character == TEXT && !inside_quotes {
                    body.push('"');
                }
            }
            (END, _) => {
                if piece.take() == Some(TEXT) && !inside_quotes {
                    body.push('"');
                }
            }
            // Pieces are whole by themselves; only the template's own characters open and close quotes.
            (_, Some(_)) => body.push(character),
            (_, None) => {
                body.push(character);
                if escaped {
                    escaped = false;
                } else if character == '\\' {
                    escaped = inside_quotes;
                } else if character == '"' {
                    inside_quotes = !inside_quotes;
                }
            }
        }
    }
    Ok(body)
}

fn percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn markup(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => encoded.push_str("&amp;"),
            '<' => encoded.push_str("&lt;"),
            '>' => encoded.push_str("&gt;"),
            '"' => encoded.push_str("&quot;"),
            '\'' => encoded.push_str("&#39;"),
            other => encoded.push(other),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Class, Destination, MessageId};
    use serde_json::json;

    fn message(payload: &str) -> Message {
        Message {
            message_id: MessageId::new("ow-1"),
            dedup_key: "GRADE:1".into(),
            kind: "GRADE".into(),
            class: Class::Transactional,
            destination: Destination::new("gateway"),
            recipient: "01000000001".into(),
            payload: payload.into(),
            ordering_key: None,
            priority: 3,
            not_before_ms: 0,
            expires_at_ms: None,
            created_at_ms: 1_700_000_000_000,
            traceparent: None,
        }
    }

    fn render(source: &str, content_type: &str, payload: &str) -> Result<String, String> {
        let template = Template::compile(source, Escaping::of(content_type)).expect("a template");
        let body = template.render(&message(payload)).map_err(|unfit| unfit.reason)?;
        Ok(String::from_utf8(body).expect("text"))
    }

    #[track_caller]
    fn json_is(source: &str, payload: &serde_json::Value, wanted: serde_json::Value) {
        let body = render(source, "application/json; charset=utf-8", &payload.to_string()).expect("fits");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&body).expect("JSON"), wanted);
    }

    #[track_caller]
    fn refused(source: &str, payload: &str, because: &str) {
        let reason = render(source, "application/json", payload).expect_err("must be unfit");
        assert!(reason.contains(because), "{reason}");
        assert!(!reason.contains("Hong"), "the reason repeats a value: {reason}");
    }

    #[test]
    fn every_field_of_the_row_is_there() {
        json_is(
            r#"{"id":"{{ message_id }}","k":{{ dedup_key }},"kind":"{{ kind }}","class":"{{ class }}",
                "to":{{ recipient }},"p":{{ priority }},"at":{{ created_at_ms }},"all":{{ payload }}}"#,
            &json!({"a": [1, null, "x"]}),
            json!({"id": "ow-1", "k": "GRADE:1", "kind": "GRADE", "class": "TRANSACTIONAL", "to": "01000000001",
                "p": 3, "at": 1_700_000_000_000_i64, "all": {"a": [1, null, "x"]}}),
        );
    }

    #[test]
    fn no_value_can_break_out_of_its_place() {
        for evil in ["\",\"to\":\"x", "\\", "a\nb\u{7}", "}{", "{{ recipient }}", "1, 2"] {
            let payload = json!({"name": evil, "list": [evil, ",", ":"]});
            json_is(
                r#"{"quoted":"Dear {{ payload.name }}!","bare":{{ payload.name }},"json":{{ payload.name | tojson }},
                    "list":[{{ payload.name }}],"whole":{{ payload.list }}}"#,
                &payload,
                json!({"quoted": format!("Dear {evil}!"), "bare": evil, "json": evil, "list": [evil],
                    "whole": [evil, ",", ":"]}),
            );
        }
        // The values that would close the quotes and open others.
        refused(r#"{"m":"{{ payload.list }}"}"#, r#"{"list":[",",":","]}"]}"#, "inside quotes");
        refused(r#"{"m":"{{ payload.list | tojson }}"}"#, r#"{"list":[",",":"]}"#, "inside quotes");
        refused(r#"{"m":"{{ payload.name }}"}"#, r#"{"name":null}"#, "inside quotes");
        refused(r#"{"m":"{{ payload.name }}"}"#, r#"{"name":"Hong\u0002[1]\u0004"}"#, "cannot stand");
        refused(r#"{"m":"\{{ payload.name }}"}"#, r#"{"name":"\"Hong"}"#, "backslash");
    }

    #[test]
    fn logic_works_and_captured_text_keeps_its_escaping() {
        json_is(
            r#"{% set hello %}Dear {{ payload.name }}{% endset %}{"m":"{{ hello }}","l":[{% for x in payload.l %}{% if not loop.first %},{% endif %}{{ x }}{% endfor %}]}"#,
            &json!({"name": "\"Kim\"", "l": ["a", "b"]}),
            json!({"m": "Dear \"Kim\"", "l": ["a", "b"]}),
        );
    }

    #[test]
    fn joined_text_is_escaped_once() {
        json_is(
            r#"{% set a %}{{ payload.name }}{% endset %}{"m":"{{ a ~ payload.name }}","n":"{{ "x" ~ payload.name }}"}"#,
            &json!({"name": "\"\\"}),
            json!({"m": "\"\\\"\\", "n": "x\"\\"}),
        );
    }

    #[test]
    fn what_does_not_fit_is_said_without_values() {
        refused(r#"{"m":"{{ payload.missing }}"}"#, r#"{"name":"Hong"}"#, "a field is missing (line 1)");
        refused(r#"{"m":"{{ payload.missing.deeper }}"}"#, r#"{"name":"Hong"}"#, "a field is missing");
        refused(r#"{"m":{{ nobody }}}"#, r#"{"name":"Hong"}"#, "a field is missing");
        refused(r#"{"m":{{ payload.missing | tojson }}}"#, r#"{"name":"Hong"}"#, "a field is missing");
        refused(r#"{"m":{{ payload.name }}"#, r#"{"name":"Hong"}"#, "did not give JSON");
        refused("{}", r#"{"name":"Hong""#, "payload is not JSON");
    }

    #[test]
    fn a_wrong_template_is_refused_when_compiled() {
        assert!(Template::compile("{{ oops", Escaping::Json).is_err_and(|reason| reason.contains("line 1")));
        assert!(Template::compile("\u{1}", Escaping::Json).is_err());
        // The engine looks filters up when it fills in, so this one shows at the first row, which is parked.
        refused(r#"{"m":"{{ payload.name | safe }}"}"#, r#"{"name":"Hong"}"#, "unknown filter");
    }

    #[test]
    fn other_content_types_have_their_own_escaping() {
        let payload = r#"{"t":"a&b=<가> \"q\""}"#;
        let check = |content_type: &str, wanted: &str| {
            assert_eq!(render("t={{ payload.t }}", content_type, payload).expect("fits"), wanted);
        };
        check("application/x-www-form-urlencoded", "t=a%26b%3D%3C%EA%B0%80%3E%20%22q%22");
        check("application/soap+xml; charset=utf-8", "t=a&amp;b=&lt;가&gt; &quot;q&quot;");
        check("text/plain", "t=a&b=<가> \"q\"");
        assert!(render("{{ payload }}", "text/plain", payload).is_err());
    }
}
