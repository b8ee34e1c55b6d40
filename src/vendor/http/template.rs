//! Body templates of the generic adapter: one compiled template over a row's fields.
//!
//! Its one promise beyond filling in: what comes from a row can never change the structure of the body. In JSON
//! each inserted piece is marked while rendering, and a walk over the result checks that a text stands inside
//! quotes (where it is escaped) and that an object, list or null stands outside of them. It never sends, and its
//! errors never hold a value.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior};

use crate::message::Message;
use crate::vendor::Unfit;

/// Marks around inserted pieces while rendering. Control characters cannot be part of JSON, so data never
/// contains them once escaped, and a template that contains one is refused.
const TEXT: char = '\u{1}';
const STRUCTURE: char = '\u{2}';
const SCALAR: char = '\u{3}';
const END: char = '\u{4}';

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
        if source.chars().any(|character| (TEXT..=END).contains(&character)) {
            return Err("body: the template contains a control character".to_owned());
        }
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(move |output, state, value| insert(output, state, value, escaping));
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
            dedup_key => message.dedup_key,
            kind => message.kind,
            class => message.class.as_str(),
            recipient => message.recipient,
            priority => message.priority,
            created_at_ms => message.created_at_ms,
            payload => Value::from_serialize(&payload),
        };
        let rendered = self
            .environment
            .get_template("body")
            .and_then(|template| template.render(row))
            .map_err(|error| unfit(format!("the body template does not fit: {}", without_values(&error))))?;
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
fn insert(output: &mut Output, state: &State, value: &Value, escaping: Escaping) -> Result<(), Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    // What `tojson` made, and blocks captured with `set`: escaped and marked already.
    if value.is_safe() {
        return minijinja::escape_formatter(output, state, value);
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
    let json = serde_json::to_string(value).map_err(|_| Error::from(ErrorKind::BadSerialization))?;
    Ok(match value.kind() {
        ValueKind::String => format!("{TEXT}{}{END}", &json[1..json.len() - 1]),
        ValueKind::Number | ValueKind::Bool => format!("{SCALAR}{json}{END}"),
        _ => format!("{STRUCTURE}{json}{END}"),
    })
}

/// Takes the marks out and checks that each piece stands where it cannot break out.
fn walk(rendered: &str) -> Result<String, &'static str> {
    let mut body = String::with_capacity(rendered.len());
    let mut inside_quotes = false;
    let mut inside_piece = false;
    let mut escaped = false;
    for character in rendered.chars() {
        match character {
            TEXT | STRUCTURE | SCALAR if inside_piece || escaped => return Err("a value stands after a backslash"),
            TEXT if !inside_quotes => return Err("a text stands outside of quotes; write it inside, or use tojson"),
            STRUCTURE if inside_quotes => return Err("an object, list or null stands inside quotes"),
            TEXT | STRUCTURE | SCALAR => inside_piece = true,
            END => inside_piece = false,
            _ => {
                body.push(character);
                // Pieces are whole by themselves; only the template's own characters open and close quotes.
                if inside_piece {
                    continue;
                }
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
