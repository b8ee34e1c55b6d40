//! One table of the settings while it is read: hands out its keys, remembers which are known, and reports
//! the rest with a suggestion.
//!
//! Knows no key by itself and holds no default: the sections do.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::nearest::suggestion;
use super::problems::Problems;

/// A value as TOML gives it, with its place in the text.
pub(super) type Raw<'t> = Spanned<DeValue<'t>>;

/// A value that was read, or the default in its place.
#[derive(Clone, Debug)]
pub(super) struct Given<T> {
    /// The value as meant; a stand-in when `sound` is false.
    pub(super) value: T,
    /// Where to point at when a relation to another value is broken.
    pub(super) at: Range<usize>,
    /// False after a problem with it, so that no second problem is built on the stand-in.
    pub(super) sound: bool,
}

impl<T> Given<T> {
    /// The same with the value changed.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Given<U> {
        Given { value: change(self.value), at: self.at, sound: self.sound }
    }
}

/// One table being read.
pub(super) struct Section<'a, 't> {
    /// As shown: `[relay]`, `[[destination]]`, `[retry].quick`.
    name: String,
    at: Range<usize>,
    table: Option<&'a DeTable<'t>>,
    known: Vec<&'static str>,
}

impl<'a, 't> Section<'a, 't> {
    /// A section over a table that is there.
    pub(super) fn new(name: impl Into<String>, at: Range<usize>, table: &'a DeTable<'t>) -> Self {
        Self { name: name.into(), at, table: Some(table), known: Vec::new() }
    }

    /// A section that is not in the file: every key has its default.
    pub(super) fn absent(name: impl Into<String>) -> Self {
        Self { name: name.into(), at: 0..0, table: None, known: Vec::new() }
    }

    /// The named table of `parent`, absent when it is missing or (a problem) no table.
    pub(super) fn within(
        parent: &mut Section<'a, 't>,
        key: &'static str,
        name: &str,
        problems: &mut Problems,
    ) -> Self {
        match parent.raw(key) {
            None => Self::absent(name),
            Some(raw) => match raw.get_ref() {
                DeValue::Table(table) => Self::new(name, raw.span(), table),
                other => {
                    problems.add(&raw.span(), name, format!("is {}, expected a section {name}", came(other)));
                    Self::absent(name)
                }
            },
        }
    }

    /// Where the section stands in the text.
    pub(super) fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    /// The section's name with a key.
    pub(super) fn place(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    /// The raw value of a key, which is known from now on.
    pub(super) fn raw(&mut self, key: &'static str) -> Option<&'a Raw<'t>> {
        self.known.push(key);
        self.table.and_then(|table| table.get(key))
    }

    /// The place of a key that belongs elsewhere, if it is there; it is then reported once, not again as unknown.
    /// A missing one is not remembered, so that it is never suggested.
    pub(super) fn misplaced(&mut self, key: &'static str) -> Option<Range<usize>> {
        let (found, _) = self.table?.get_key_value(key)?;
        self.known.push(key);
        Some(found.span())
    }

    /// Reads a key with its element; `None` when it is missing, or wrong (then a problem is noted).
    pub(super) fn optional<T>(
        &mut self,
        problems: &mut Problems,
        key: &'static str,
        element: impl FnOnce(&DeValue<'t>) -> Result<T, String>,
    ) -> Given<Option<T>> {
        let Some(raw) = self.raw(key) else { return Given { value: None, at: self.at(), sound: true } };
        match element(raw.get_ref()) {
            Ok(value) => Given { value: Some(value), at: raw.span(), sound: true },
            Err(what) => {
                problems.add(&raw.span(), self.place(key), what);
                Given { value: None, at: raw.span(), sound: false }
            }
        }
    }

    /// Reads a key with its element; the default when it is missing, or (after a problem) as a stand-in.
    pub(super) fn get<T>(
        &mut self,
        problems: &mut Problems,
        key: &'static str,
        default: T,
        element: impl FnOnce(&DeValue<'t>) -> Result<T, String>,
    ) -> Given<T> {
        self.optional(problems, key, element).map(|value| value.unwrap_or(default))
    }

    /// Reads a key that must be there; the hint says what to write.
    pub(super) fn required<T>(
        &mut self,
        problems: &mut Problems,
        key: &'static str,
        hint: &str,
        stand_in: T,
        element: impl FnOnce(&DeValue<'t>) -> Result<T, String>,
    ) -> Given<T> {
        let given = self.optional(problems, key, element);
        if given.value.is_none() && given.sound {
            problems.add(&given.at, self.place(key), format!("is missing, {hint}"));
            return Given { value: stand_in, at: given.at, sound: false };
        }
        given.map(|value| value.unwrap_or(stand_in))
    }

    /// Reports every key that nobody asked for.
    pub(super) fn finish(self, problems: &mut Problems) {
        for (key, _) in self.table.into_iter().flat_map(|table| table.iter()) {
            let word: &str = key.get_ref();
            if self.known.contains(&word) {
                continue;
            }
            let near = suggestion(word, self.known.iter().copied());
            let what = match near.as_str() {
                "" => format!("unknown key, expected one of {}", self.known.join(", ")),
                near => format!("unknown key{near}"),
            };
            problems.add(&key.span(), self.place(&printable(word)), what);
        }
    }
}

/// The tables of an `[[array]]`.
pub(super) fn tables<'a, 't>(
    root: &mut Section<'a, 't>,
    key: &'static str,
    problems: &mut Problems,
) -> Vec<Section<'a, 't>> {
    let name = format!("[[{key}]]");
    let Some(raw) = root.raw(key) else { return Vec::new() };
    let wrong = |problems: &mut Problems, at, value: &DeValue<'_>| {
        let single = if value.is_table() { "one table with single brackets".to_owned() } else { came(value) };
        problems.add(&at, name.clone(), format!("is {single}, expected {name} in double brackets"));
    };
    let Some(entries) = raw.get_ref().as_array() else {
        wrong(problems, raw.span(), raw.get_ref());
        return Vec::new();
    };
    let mut sections = Vec::new();
    for entry in entries.iter() {
        match entry.get_ref() {
            DeValue::Table(table) => sections.push(Section::new(name.clone(), entry.span(), table)),
            other => wrong(problems, entry.span(), other),
        }
    }
    sections
}

/// A key as it may be shown: keys can be any text in quotes.
pub(super) fn printable(word: &str) -> String {
    match word.chars().count() <= 64 && !word.chars().any(char::is_control) {
        true => word.to_owned(),
        false => format!("\"{}…\"", word.chars().take(64).collect::<String>().escape_default()),
    }
}

/// What came, by type and, for short values, by value. Never for a field that may hold a secret.
pub(super) fn came(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) if text.chars().count() <= 40 => format!("the text {text:?}"),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(answer) => format!("the truth value {answer}"),
        _ => kind(value).to_owned(),
    }
}

/// What came, by type alone.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a date or time without quotes",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
