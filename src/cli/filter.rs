//! Which messages a command means: the state words people use, and the other filters, as conditions over the outbox.
//!
//! Reads nothing itself, but for a destination that the settings do not have. A filter that is not given leaves no trace in the statement, so that indexes stay of use.

use rusqlite::{Connection, ToSql};

use super::Failure;
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::exit;
use crate::lifecycle::{InboxState, OutboxState};
use crate::outboxes::Outboxes;

/// The filters that `queue`, `shape` and the verbs share.
#[derive(clap::Args, Default)]
pub struct Filter {
    /// Only these states (comma-separated, or given again)
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub state: Vec<String>,
    /// Only this destination ('' = not yet routed)
    #[arg(long, value_name = "NAME")]
    pub dest: Option<String>,
    /// Only this kind; * stands for anything
    #[arg(long)]
    pub kind: Option<String>,
    /// Only those created longer ago than this, e.g. 10m, 2h, 3d
    #[arg(long, value_name = "AGE")]
    pub older: Option<String>,
    /// Only this recipient (spaces and dashes do not matter)
    #[arg(long, value_name = "NUMBER")]
    pub to: Option<String>,
}

/// A state as people say it: of the outbox, of the vendor's side, or of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// The outbox row's; FAILED there is said CANCELLED, because a person did it.
    Outbox(OutboxState),
    /// The inbox row's.
    Fate(InboxState),
    /// What a report said.
    Delivery(&'static str),
}

impl Word {
    /// As people say it.
    pub fn said(self) -> &'static str {
        match self {
            Self::Outbox(state) => outbox_word(state),
            Self::Fate(state) => state.as_str(),
            Self::Delivery(word) => word,
        }
    }
}

/// Which states.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum States {
    /// Whatever is not finished: the default.
    Unfinished,
    /// All.
    All,
    /// These.
    These(Vec<Word>),
}

/// The word for an outbox state.
pub fn outbox_word(state: OutboxState) -> &'static str {
    match state {
        OutboxState::Failed => "CANCELLED",
        state => state.as_str(),
    }
}

/// The same for a state as it was read.
pub fn said(status: &str) -> &str {
    match OutboxState::parse(status) {
        Some(state) => outbox_word(state),
        None => status,
    }
}

const DELIVERIES: [&str; 2] = ["DELIVERED", "UNDELIVERED"];

/// What did not go as meant.
pub const TROUBLE: [Word; 6] = [
    Word::Outbox(OutboxState::Parked),
    Word::Outbox(OutboxState::Expired),
    Word::Outbox(OutboxState::Skipped),
    Word::Fate(InboxState::Error),
    Word::Fate(InboxState::Failed),
    Word::Delivery("UNDELIVERED"),
];

fn word(text: &str) -> Option<Word> {
    let outbox = OutboxState::ALL.into_iter().find(|state| outbox_word(*state) == text).map(Word::Outbox);
    let delivery = || DELIVERIES.into_iter().find(|word| *word == text).map(Word::Delivery);
    outbox.or_else(|| InboxState::parse(text).map(Word::Fate)).or_else(delivery)
}

/// The words of `--state`, any case. `ALL` stands for all.
pub fn states(given: &[String]) -> Result<States, Failure> {
    if given.is_empty() {
        return Ok(States::Unfinished);
    }
    let mut words = Vec::new();
    for text in given {
        match text.trim().to_ascii_uppercase().as_str() {
            "ALL" => return Ok(States::All),
            "UNFINISHED" => {
                words.extend(OutboxState::ALL.into_iter().filter(|state| !state.is_final()).map(Word::Outbox))
            }
            upper => words.push(word(upper).ok_or_else(|| {
                let known: Vec<&str> = OutboxState::ALL
                    .map(outbox_word)
                    .into_iter()
                    .chain(InboxState::ALL.map(InboxState::as_str))
                    .chain(DELIVERIES)
                    .collect();
                let text = format!(
                    "--state {}: one of {}, UNFINISHED or ALL was expected",
                    super::output::plain(text),
                    known.join(", ")
                );
                Failure::new(exit::USAGE, text)
            })?),
        }
    }
    Ok(States::These(words))
}

/// Conditions and their values; joined by AND.
#[derive(Default)]
pub struct Conditions {
    sql: String,
    values: Vec<(&'static str, Box<dyn ToSql>)>,
}

impl Conditions {
    /// One more condition.
    pub fn and(&mut self, sql: &str) {
        if !self.sql.is_empty() {
            self.sql.push_str(" AND ");
        }
        self.sql.push_str(sql);
    }
    /// One more, with its value.
    pub fn and_with(&mut self, sql: &str, name: &'static str, value: impl ToSql + 'static) {
        self.and(sql);
        self.bind(name, value);
    }
    /// A value alone.
    pub fn bind(&mut self, name: &'static str, value: impl ToSql + 'static) {
        self.values.push((name, Box::new(value)));
    }
    /// `WHERE ...`, or nothing.
    pub fn where_clause(&self) -> String {
        if self.sql.is_empty() { String::new() } else { format!("WHERE {}", self.sql) }
    }
    /// For rusqlite.
    pub fn params(&self) -> Vec<(&'static str, &dyn ToSql)> {
        self.values.iter().map(|(name, value)| (*name, &**value)).collect()
    }
}

impl Filter {
    /// Whether any is given.
    pub fn is_given(&self) -> bool {
        !self.state.is_empty()
            || self.dest.is_some()
            || self.kind.is_some()
            || self.older.is_some()
            || self.to.is_some()
    }

    /// Refuses a destination that nobody knows, since "none" would be no answer: one that the settings do not have must be
    /// named by a row. Where a source cannot be read, nobody can tell.
    pub fn known(
        &self,
        settings: &Settings,
        outboxes: &Outboxes,
        inbox: Option<&Connection>,
    ) -> Result<(), Failure> {
        let Some(name) = self.dest.as_ref().filter(|name| !name.is_empty()) else { return Ok(()) };
        if settings.destinations.iter().any(|one| one.name == *name) {
            return Ok(());
        }
        let has = |reader: &Connection, sql: &str| reader.query_row(sql, [name], |row| row.get::<_, bool>(0));
        let rows =
            |reader: &Connection| has(reader, "SELECT EXISTS (SELECT 1 FROM outbox WHERE destination = ?1)");
        let sent = inbox.map(|inbox| has(inbox, "SELECT EXISTS (SELECT 1 FROM inbox WHERE consumer = ?1)"));
        if sent.transpose().map_err(Failure::io)? == Some(true)
            || rows(&outboxes.own().reader()?).map_err(Failure::io)?
        {
            return Ok(());
        }
        let mut found = false;
        let unread = outboxes.each_source(&mut |_, reader| {
            found |= rows(reader)?;
            Ok(())
        });
        if found || !unread.is_empty() { Ok(()) } else { Err(unknown_destination(settings, name)) }
    }

    /// Everything but the state, over the outbox under the name `o`.
    pub fn conditions(&self, conditions: &mut Conditions) -> Result<(), Failure> {
        if let Some(destination) = &self.dest {
            conditions.and_with("o.destination = :dest", ":dest", destination.clone());
        }
        match &self.kind {
            Some(kind) if kind.contains('*') => {
                conditions.and_with("o.kind GLOB :kind", ":kind", glob(kind));
            }
            Some(kind) => conditions.and_with("o.kind = :kind", ":kind", kind.clone()),
            None => {}
        }
        if let Some(age) = &self.older {
            let before_ms = wall_ms().saturating_sub(span_ms("--older", age)?);
            conditions.and_with("o.created_at_ms < :older", ":older", before_ms);
        }
        if let Some(number) = &self.to {
            let bare: String = number.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
            conditions.and_with("replace(replace(o.recipient, '-', ''), ' ', '') = :to", ":to", bare);
        }
        Ok(())
    }
}

/// The refusal of `--dest NAME`.
pub fn unknown_destination(settings: &Settings, name: &str) -> Failure {
    let names: Vec<&str> = settings.destinations.iter().map(|known| known.name.as_str()).collect();
    let text =
        format!("--dest: the settings have no {:?}, only {}", super::output::plain(name), names.join(", "));
    Failure::new(exit::DATA, text)
}

/// `column = 'A' OR column = 'B'`: words of ours alone, no text from outside. `0` where there is none.
pub fn any_of<'w>(column: &str, words: impl IntoIterator<Item = &'w str>) -> String {
    let terms: Vec<String> = words.into_iter().map(|word| format!("{column} = '{word}'")).collect();
    if terms.is_empty() { "0".into() } else { format!("({})", terms.join(" OR ")) }
}

/// `*` alone has a meaning, as in routes.
pub fn glob(pattern: &str) -> String {
    pattern.replace('[', "[[]").replace('?', "[?]")
}

/// `30s`, `10m`, `2h`, `3d` in milliseconds.
pub fn span_ms(flag: &str, text: &str) -> Result<i64, Failure> {
    let bad = || Failure::new(exit::USAGE, format!("{flag}: a span such as 30s, 10m, 2h or 3d was expected"));
    let unit = text.chars().last().ok_or_else(bad)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(bad()),
    };
    let count: u32 = text[..text.len() - 1].parse().map_err(|_| bad())?;
    Ok(i64::from(count).saturating_mul(seconds).saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_people_are_known_in_any_case() {
        let words = |text: &str| states(&[text.to_owned()]).map_err(|failure| failure.code);
        assert_eq!(words("cancelled"), Ok(States::These(vec![Word::Outbox(OutboxState::Failed)])));
        assert_eq!(words("FAILED"), Ok(States::These(vec![Word::Fate(InboxState::Failed)])));
        assert_eq!(words("Delivered"), Ok(States::These(vec![Word::Delivery("DELIVERED")])));
        assert_eq!(words("all"), Ok(States::All));
        assert_eq!(words("WRONG"), Err(64));
        assert_eq!(states(&[]).map_err(|failure| failure.code), Ok(States::Unfinished));
    }

    #[test]
    fn spans_and_patterns() {
        for (text, ms) in
            [("30s", Some(30_000)), ("2h", Some(7_200_000)), ("x", None), ("", None), ("-1m", None)]
        {
            assert_eq!(span_ms("--older", text).ok(), ms, "{text}");
        }
        assert_eq!(glob("A[?*"), "A[[][?]*");
    }
}
