//! One table of a settings file, read key by key: each reading method names what it expected where it is disappointed,
//! and keys that nobody read are unknown. Knows no key itself.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problems::{Problems, Wrong, shown};
use super::{duration, nearest, rate};

/// A table and where it stands.
pub(super) struct Section<'a> {
    /// `[agent]`, `[[destination]] name`, ...
    pub(super) place: String,
    /// Its line.
    pub(super) line: usize,
    table: &'a DeTable<'a>,
    problems: &'a Problems,
    known: RefCell<Vec<&'static str>>,
}

/// A value with its line.
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) line: usize,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        place: impl Into<String>,
        line: usize,
        table: &'a DeTable<'a>,
        problems: &'a Problems,
    ) -> Self {
        Self { place: place.into(), line, table, problems, known: RefCell::default() }
    }

    /// Reports a problem with one of this table's keys.
    pub(super) fn wrong(&self, line: usize, key: &str, wrong: &Wrong) {
        let place = match (self.place.as_str(), key) {
            ("", key) => key.to_owned(),
            (place, "") => place.to_owned(),
            (place, key) => format!("{place}.{key}"),
        };
        self.problems.add(line, &place, wrong);
    }

    fn get(&self, key: &'static str) -> Option<(&'a Spanned<DeValue<'a>>, usize)> {
        self.known.borrow_mut().push(key);
        let value = self.table.get(key)?;
        Some((value, self.problems.line_of(value.span().start)))
    }

    fn typed<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Option<At<T>> {
        let (value, line) = self.get(key)?;
        match read(value.get_ref()) {
            Some(value) => Some(At { value, line }),
            None => {
                self.wrong(
                    line,
                    key,
                    &Wrong::new(format!("{expected} was expected, not {}", value.get_ref().type_str())),
                );
                None
            }
        }
    }

    /// Text, if the key is there.
    pub(super) fn text(&self, key: &'static str) -> Option<At<&'a str>> {
        self.typed(key, "text in quotes", DeValue::as_str)
    }

    /// Non-empty text that must be there.
    pub(super) fn needed(&self, key: &'static str) -> String {
        match self.text(key) {
            Some(text) if !text.value.is_empty() => text.value.to_owned(),
            Some(text) => {
                self.wrong(text.line, key, &Wrong::new("is empty"));
                String::new()
            }
            None if self.table.contains_key(key) => String::new(),
            None => {
                self.wrong(self.line, key, &Wrong::new("is missing"));
                String::new()
            }
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, key: &'static str, default: bool) -> bool {
        self.typed(key, "true or false", DeValue::as_bool).map_or(default, |at| at.value)
    }

    /// A whole number within bounds.
    pub(super) fn number(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        let read = self.typed(key, "a whole number", |value| {
            i128::from_str_radix(&value.as_integer()?.as_str().replace('_', ""), value.as_integer()?.radix())
                .ok()
        });
        match read {
            Some(At { value, .. }) if u64::try_from(value).is_ok_and(|value| range.contains(&value)) => {
                value as u64
            }
            Some(At { value, line }) => {
                self.wrong(
                    line,
                    key,
                    &Wrong::new(format!("{value} is outside {} to {}", range.start(), range.end())),
                );
                default
            }
            None => default,
        }
    }

    /// A duration in quotes within bounds; says which line it stands on (the table's where it is a default).
    pub(super) fn duration_at(
        &self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> At<Duration> {
        match self.typed(key, duration::EXPECTED, DeValue::as_str) {
            Some(at) => match duration::parse_within(at.value, &range) {
                Ok(value) => At { value, line: at.line },
                Err(wrong) => {
                    self.wrong(at.line, key, &wrong);
                    At { value: default, line: at.line }
                }
            },
            None => At { value: default, line: self.line },
        }
    }

    /// The same without its line.
    pub(super) fn duration(
        &self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        self.duration_at(key, default, range).value
    }

    /// Calls a second.
    pub(super) fn rate(&self, key: &'static str) -> Option<f64> {
        let at = self.typed(key, rate::EXPECTED, DeValue::as_str)?;
        rate::parse(at.value).map_err(|wrong| self.wrong(at.line, key, &wrong)).ok()
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &'static str) -> Vec<String> {
        let Some((value, line)) = self.get(key) else { return Vec::new() };
        let Some(list) = value.get_ref().as_array() else {
            self.wrong(
                line,
                key,
                &Wrong::new(format!("a list of texts was expected, not {}", value.get_ref().type_str())),
            );
            return Vec::new();
        };
        let mut texts = Vec::new();
        for item in list.iter() {
            match item.get_ref().as_str() {
                Some(text) => texts.push(text.to_owned()),
                None => self.wrong(
                    self.problems.line_of(item.span().start),
                    key,
                    &Wrong::new(format!("text in quotes was expected, not {}", item.get_ref().type_str())),
                ),
            }
        }
        texts
    }

    /// Any value.
    pub(super) fn any(&self, key: &'static str) -> Option<At<&'a DeValue<'a>>> {
        self.get(key).map(|(value, line)| At { value: value.get_ref(), line })
    }

    /// A table below this one.
    pub(super) fn table(&self, key: &'static str, place: impl Into<String>) -> Option<Section<'a>> {
        let (value, line) = self.get(key)?;
        match value.get_ref().as_table() {
            Some(table) => Some(Section::new(place, line, table, self.problems)),
            None => {
                self.wrong(
                    line,
                    key,
                    &Wrong::new(format!("a table was expected, not {}", value.get_ref().type_str())),
                );
                None
            }
        }
    }

    /// `[[key]]` blocks.
    pub(super) fn blocks(&self, key: &'static str) -> Vec<Section<'a>> {
        let Some((value, line)) = self.get(key) else { return Vec::new() };
        let Some(list) = value.get_ref().as_array() else {
            self.wrong(line, key, &Wrong::new(format!("write [[{key}]] (two brackets), one block for each")));
            return Vec::new();
        };
        list.iter()
            .filter_map(|item| {
                let line = self.problems.line_of(item.span().start);
                match item.get_ref().as_table() {
                    Some(table) => Some(Section::new(format!("[[{key}]]"), line, table, self.problems)),
                    None => {
                        self.wrong(line, key, &Wrong::new("a table was expected"));
                        None
                    }
                }
            })
            .collect()
    }

    /// Keys and values of a table whose keys are free.
    pub(super) fn entries(&self) -> Vec<(String, At<Option<&'a str>>)> {
        self.table
            .iter()
            .map(|(key, value)| {
                let line = self.problems.line_of(value.span().start);
                (key.get_ref().to_string(), At { value: value.get_ref().as_str(), line })
            })
            .collect()
    }

    /// Whether the key stands there at all.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Reports keys that nobody has asked for.
    pub(super) fn no_other_keys(&self) {
        let known = self.known.borrow();
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let meant = nearest::nearest(name, known.iter().copied()).map(|near| format!("{near:?}"));
                let line = self.problems.line_of(key.span().start);
                self.wrong(line, "", &Wrong::new(format!("unknown key {}", shown(name))).meant(meant));
            }
        }
    }
}
