//! What a fault rule is, and the short text it is written in.
//!
//! Data and its reading only; which rule meets a request is decided in `faults`, what it does in `server`. One rule is one line of comma-separated words, for example
//! `status=500,every=10` or `path=/v1/token,delay=3s`. The first rule that fires is the only one that acts.
//!
//! Which requests (all that are given must hold):
//!
//! | word | meets |
//! |---|---|
//! | `path=/v3` | paths with this prefix; without it only requests that carry a message |
//! | `reference=KEY`, `reference=PRE*` | this reference, or every reference with this prefix |
//! | `recipient=0500` | recipients that end so |
//! | `after=N` | not the first N of those |
//! | `first=N` | the first N (behind `after`) |
//! | `every=N` | every Nth |
//! | `chance=0.05` | this share, by a seeded generator |
//!
//! What happens (at most one):
//!
//! | word | does |
//! |---|---|
//! | `status=N`, with `header=Name:Value`, `retry_after=S`, `retry_date=30s`, `body=TEXT` (last word) | answers so; `retry_date` is a `Retry-After` with the HTTP date of then |
//! | `code=N` | answers with this vendor code and its HTTP status |
//! | `hang`, `hang=20s` | reads the request and says nothing until stop (or for so long), then closes |
//! | `close`, `close=accept/head/read/answer/idle` | FIN: on accept, after the head, after the whole request (the default), right after the answer, or 50 ms later while idle |
//! | `reset`, `reset=…` | the same with RST |
//! | `cut=head`, `cut=body` | half an answer, then FIN |
//! | `garbage` | bytes that are not HTTP, then FIN |
//! | `html=502` | a proxy's page |
//! | `redirect=307`, with `location=URL` | a redirect, by default to a path of the sandbox that counts arrivals |
//! | `unframed` | an answer that ends with the connection |
//! | `huge`, `huge=BYTES` | an answer of 64 MiB (or so many bytes) |
//!
//! Besides: `delay=2s` waits before that; `accepted=yes/no` says whether the vendor took the message all the
//! same (by default yes where only the answer is damaged); `report=no/twice/fallback/CODE` shapes its report.

use std::str::FromStr;
use std::time::Duration;

/// Default size of a `huge` answer, bytes.
const HUGE_BYTES: u64 = 64 * 1024 * 1024;
/// How long after the answer `close=idle` closes.
const IDLE_BEFORE_CLOSE: Duration = Duration::from_millis(50);

/// Which requests a [`Rule`] meets. Everything that is set must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matcher {
    /// Prefix of the path; `None` meets only requests that carry a message.
    pub path: Option<String>,
    /// Exact reference, or a prefix where it ends in `*`.
    pub reference: Option<String>,
    /// How the recipient ends.
    pub recipient: Option<String>,
    /// Requests that are let through first.
    pub after: u64,
    /// How many are met behind `after`; `None` is all.
    pub first: Option<u64>,
    /// Only every Nth.
    pub every: Option<u64>,
    /// Share of requests, 0 to 1.
    pub chance: Option<f64>,
}

/// When a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as it is accepted.
    Accept,
    /// When the head is read, the body not.
    Head,
    /// When the whole request is read; no answer.
    Read,
    /// Right after the answer, which did not announce it.
    Answer,
    /// A little after the answer, while the connection is idle.
    Idle(Duration),
}

/// Where an answer is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// In the middle of the head.
    Head,
    /// In the middle of the body.
    Body,
}

/// What happens to a request that a rule met.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing but the rule's delay and report.
    Usual,
    /// This status, these headers, this body (by default an empty JSON object).
    Status {
        /// HTTP status.
        status: u16,
        /// Header names and values.
        headers: Vec<(String, String)>,
        /// Body text.
        body: Option<String>,
    },
    /// The vendor's code with the HTTP status that belongs to it.
    VendorCode(u16),
    /// No answer: until stop, or for so long.
    Hang(Option<Duration>),
    /// Ends the connection with FIN.
    Close(When),
    /// Ends the connection with RST.
    Reset(When),
    /// Half an answer.
    Cut(Cut),
    /// Bytes that are not HTTP.
    Garbage,
    /// A proxy's HTML page with this status.
    Html(u16),
    /// A redirect.
    Redirect {
        /// HTTP status.
        status: u16,
        /// Target; by default a path of the sandbox that counts arrivals.
        location: Option<String>,
    },
    /// An answer without a length that ends with the connection.
    Unframed,
    /// An answer of this many bytes.
    Huge(u64),
}

/// What becomes of a message's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportPlan {
    /// Delivered, told once.
    #[default]
    Delivered,
    /// No report ever.
    Silent,
    /// The same report twice.
    Twice,
    /// One report with this result code.
    Result(u16),
    /// The main channel failed and an SMS was delivered instead: two reports, one reference.
    Fallback,
}

/// One fault: which requests, and what happens to them. Written as text, see the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Which requests.
    pub when: Matcher,
    /// What happens.
    pub then: Action,
    /// Adds a `Retry-After` with the date that is so far ahead to a status.
    pub retry_date: Option<Duration>,
    /// Wait before that.
    pub delay: Duration,
    /// Whether the vendor takes the message all the same; `None` goes by the action.
    pub accepted: Option<bool>,
    /// What becomes of its report.
    pub report: ReportPlan,
}

/// A rule's text that cannot be read: says which word and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault rule: {0}")]
pub struct RuleError(String);

impl Rule {
    /// Reads one line of the text form.
    ///
    /// # Errors
    /// Names the word that is unknown, malformed or in conflict with another.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let mut rule = Rule {
            when: Matcher::default(),
            then: Action::Usual,
            retry_date: None,
            delay: Duration::ZERO,
            accepted: None,
            report: ReportPlan::default(),
        };
        let mut extras = Extras::default();
        let mut something = false;
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end =
                if rest.starts_with("body=") { rest.len() } else { rest.find(',').unwrap_or(rest.len()) };
            let word = rest[..end].trim();
            rest = rest.get(end + 1..).unwrap_or("").trim_start();
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value.trim())),
                None => (word, None),
            };
            something |= rule.read_word(name, value, &mut extras)?;
        }
        extras.put_into(&mut rule.then)?;
        if !something {
            return Err(RuleError(format!("`{}` says nothing that should happen", text.trim())));
        }
        rule.check()?;
        Ok(rule)
    }

    /// Takes one word in; true where it says that something happens (rather than to whom).
    fn read_word(&mut self, name: &str, value: Option<&str>, extras: &mut Extras) -> Result<bool, RuleError> {
        let needed = || value.ok_or_else(|| RuleError(format!("`{name}` needs a value: `{name}=…`")));
        match name {
            "path" => self.when.path = Some(needed()?.to_owned()),
            "reference" => self.when.reference = Some(needed()?.to_owned()),
            "recipient" => self.when.recipient = Some(needed()?.to_owned()),
            "after" => self.when.after = number(name, needed()?)?,
            "first" => self.when.first = Some(number(name, needed()?)?),
            "every" => match number(name, needed()?)? {
                0 => return Err(RuleError("`every` counts from 1".to_owned())),
                n => self.when.every = Some(n),
            },
            "chance" => match number::<f64>(name, needed()?)? {
                share if (0.0..=1.0).contains(&share) => self.when.chance = Some(share),
                _ => return Err(RuleError("`chance` is between 0 and 1".to_owned())),
            },
            "header" => match needed()?.split_once(':') {
                Some((key, text)) if !key.trim().is_empty() => {
                    extras.headers.push((key.trim().to_owned(), text.trim().to_owned()));
                }
                _ => return Err(RuleError("`header` is written `header=Name:Value`".to_owned())),
            },
            "retry_after" => extras.headers.push(("Retry-After".to_owned(), needed()?.to_owned())),
            "retry_date" => self.retry_date = Some(duration(name, needed()?)?),
            "body" => extras.body = Some(needed()?.to_owned()),
            "location" => extras.location = Some(needed()?.to_owned()),
            "delay" => {
                self.delay = duration(name, needed()?)?;
                return Ok(true);
            }
            "accepted" => self.accepted = Some(yes_or_no(name, needed()?)?),
            "report" => {
                self.report = match needed()? {
                    "no" => ReportPlan::Silent,
                    "twice" => ReportPlan::Twice,
                    "fallback" => ReportPlan::Fallback,
                    code => ReportPlan::Result(number(name, code)?),
                };
                return Ok(true);
            }
            _ => {
                let action = read_action(name, value)?;
                if self.then != Action::Usual {
                    return Err(RuleError(format!("`{name}` is a second thing to happen; write two rules")));
                }
                self.then = action;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What can be known at the moment a rule acts limits what it may ask for.
    fn check(&self) -> Result<(), RuleError> {
        if self.retry_date.is_some() && !matches!(self.then, Action::Status { .. }) {
            return Err(RuleError("`retry_date` belongs to `status`".to_owned()));
        }
        let early = match self.stage() {
            Stage::Accept => "accept",
            Stage::Head => "head",
            Stage::Read => return Ok(()),
        };
        if self.when.recipient.is_some() {
            return Err(RuleError(format!("at `{early}` the recipient is not known yet")));
        }
        if early == "accept" && (self.when.path.is_some() || self.when.reference.is_some()) {
            return Err(RuleError("at `accept` path and reference are not known yet".to_owned()));
        }
        Ok(())
    }

    /// When the rule is looked at.
    pub(super) fn stage(&self) -> Stage {
        match self.then {
            Action::Close(When::Accept) | Action::Reset(When::Accept) => Stage::Accept,
            Action::Close(When::Head) | Action::Reset(When::Head) => Stage::Head,
            _ => Stage::Read,
        }
    }

    /// Whether the vendor takes a good message that this rule met.
    pub(super) fn accepts(&self) -> bool {
        self.accepted.unwrap_or(match &self.then {
            Action::Status { status, .. } => (200..300).contains(status),
            Action::VendorCode(code) => *code == 1000,
            Action::Html(_) | Action::Redirect { .. } => false,
            Action::Close(When::Accept | When::Head) | Action::Reset(When::Accept | When::Head) => false,
            _ => true,
        })
    }

    pub(super) fn meets(&self, facts: &Facts<'_>) -> bool {
        let when = &self.when;
        (match &when.path {
            Some(prefix) => facts.path.starts_with(prefix.as_str()),
            None => facts.carries_message || self.stage() == Stage::Accept,
        }) && when.reference.as_deref().is_none_or(|wanted| match wanted.strip_suffix('*') {
            Some(prefix) => facts.reference.starts_with(prefix),
            None => facts.reference == wanted,
        }) && when.recipient.as_deref().is_none_or(|suffix| facts.recipient.ends_with(suffix))
    }
}

impl FromStr for Rule {
    type Err = RuleError;
    fn from_str(text: &str) -> Result<Self, RuleError> {
        Rule::parse(text)
    }
}

/// Words that belong to an action and may stand before it.
#[derive(Default)]
struct Extras {
    headers: Vec<(String, String)>,
    body: Option<String>,
    location: Option<String>,
}

impl Extras {
    fn put_into(self, action: &mut Action) -> Result<(), RuleError> {
        let Extras { headers: more, body: text, location: target } = self;
        match action {
            Action::Status { headers, body, .. } => {
                *headers = more;
                *body = text;
                if target.is_some() {
                    return Err(RuleError("`location` belongs to `redirect`".to_owned()));
                }
            }
            Action::Redirect { location, .. } if more.is_empty() && text.is_none() => *location = target,
            _ if !more.is_empty() || text.is_some() || target.is_some() => {
                return Err(RuleError(
                    "`header`, `retry_after` and `body` belong to `status`, `location` to `redirect`"
                        .to_owned(),
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

fn read_action(name: &str, value: Option<&str>) -> Result<Action, RuleError> {
    let status = |least: u16| -> Result<u16, RuleError> {
        let text = value.ok_or_else(|| RuleError(format!("`{name}` needs an HTTP status")))?;
        match number(name, text)? {
            status if (least..=599).contains(&status) => Ok(status),
            _ => Err(RuleError(format!("`{name}` is an HTTP status from {least} to 599"))),
        }
    };
    let when = || -> Result<When, RuleError> {
        Ok(match value.unwrap_or("read") {
            "accept" => When::Accept,
            "head" => When::Head,
            "read" => When::Read,
            "answer" => When::Answer,
            "idle" => When::Idle(IDLE_BEFORE_CLOSE),
            other => {
                return Err(RuleError(format!(
                    "`{name}={other}`: one of accept, head, read, answer, idle is meant"
                )));
            }
        })
    };
    Ok(match name {
        "status" => Action::Status { status: status(200)?, headers: Vec::new(), body: None },
        "code" => match value {
            Some(text) => Action::VendorCode(number(name, text)?),
            None => return Err(RuleError("`code` needs the vendor's number".to_owned())),
        },
        "hang" => Action::Hang(value.map(|text| duration(name, text)).transpose()?),
        "close" => Action::Close(when()?),
        "reset" => Action::Reset(when()?),
        "cut" => match value {
            Some("head") => Action::Cut(Cut::Head),
            None | Some("body") => Action::Cut(Cut::Body),
            Some(_) => return Err(RuleError("`cut` is `cut=head` or `cut=body`".to_owned())),
        },
        "garbage" => Action::Garbage,
        "html" => Action::Html(if value.is_some() { status(200)? } else { 502 }),
        "redirect" => Action::Redirect {
            status: match if value.is_some() { status(300)? } else { 302 } {
                status @ (301 | 302 | 303 | 307 | 308) => status,
                _ => return Err(RuleError("`redirect` is 301, 302, 303, 307 or 308".to_owned())),
            },
            location: None,
        },
        "unframed" => Action::Unframed,
        "huge" => Action::Huge(value.map(|text| number(name, text)).transpose()?.unwrap_or(HUGE_BYTES)),
        _ => return Err(RuleError(format!("unknown word `{name}`"))),
    })
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, RuleError> {
    text.parse().map_err(|_| RuleError(format!("`{name}={text}`: a number is needed")))
}

fn yes_or_no(name: &str, text: &str) -> Result<bool, RuleError> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(RuleError(format!("`{name}` is yes or no"))),
    }
}

fn duration(name: &str, text: &str) -> Result<Duration, RuleError> {
    parse_duration(text).ok_or_else(|| RuleError(format!("`{name}={text}`: a time such as 200ms, 2s or 1m")))
}

/// Reads `200ms`, `2s`, `1.5s`, `1m`; at most a day.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let (amount, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    } * amount.trim().parse::<f64>().ok()?;
    (0.0..=86_400.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// The moment at which a rule can act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Accept,
    Head,
    Read,
}

/// What is known of a request when rules are asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts<'a> {
    pub path: &'a str,
    pub reference: &'a str,
    pub recipient: &'a str,
    pub carries_message: bool,
}
