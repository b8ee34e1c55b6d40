//! The table of calls, and finding the one that a request means. Whatever is not in it does not exist.

use super::guard::{Guard, Peer};
use super::wire::{Answer, Method};
use super::{Context, adopt, destinations, enqueue, health, look, messages, reports, settle};

/// One request that has passed its guard.
pub struct Request<'r> {
    /// What stood for the path's `{names}`, in order.
    pub names: [&'r str; NAMES_MAX],
    /// The query, encoded; empty where there is none.
    pub query: &'r str,
    /// The body.
    pub body: &'r [u8],
    /// Who asks.
    pub peer: &'r Peer,
}

impl Request<'_> {
    /// A parameter of the query, decoded; `None` where it is missing, empty or not to be decoded.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let value = self.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
        crate::percent::decode(&value.replace('+', " ")).filter(|value| !value.is_empty())
    }

    /// The decoded first name of the path; what cannot be decoded names nothing.
    pub fn name(&self) -> String {
        crate::percent::decode(self.names[0]).unwrap_or_default()
    }
}

/// Most `{names}` in a path.
const NAMES_MAX: usize = 2;
/// Largest body of a call that takes a few fields, bytes.
const FIELDS_BYTES_MAX: usize = 16 * 1024;
/// Largest body of a report, bytes: one is some hundred; a vendor may send several at once.
const REPORT_BYTES_MAX: usize = 512 * 1024;

/// One call.
pub struct Route {
    /// GET or POST.
    pub(super) method: Method,
    /// Segments; `{name}` stands for any one.
    pub path: &'static str,
    /// Who may.
    pub guard: Guard,
    /// Largest body, bytes; more is 413.
    pub body_bytes_max: usize,
    /// Parameters of the query that it reads; another one is 422, since leaving it out would change what is meant.
    /// `None` = not looked at.
    pub query: Option<&'static [&'static str]>,
    pub(super) answer: fn(&Context, &Request<'_>) -> Answer,
}

const fn get(path: &'static str, guard: Guard, answer: fn(&Context, &Request<'_>) -> Answer) -> Route {
    Route { method: Method::Get, path, guard, body_bytes_max: 0, query: None, answer }
}

const fn post(
    path: &'static str,
    guard: Guard,
    body_bytes_max: usize,
    answer: fn(&Context, &Request<'_>) -> Answer,
) -> Route {
    Route { method: Method::Post, path, guard, body_bytes_max, query: None, answer }
}

impl Route {
    /// With these parameters of the query and no other.
    const fn with(self, query: &'static [&'static str]) -> Self {
        Self { query: Some(query), ..self }
    }

    /// The name of a parameter that this call does not know.
    pub(super) fn unknown<'q>(&self, query: &'q str) -> Option<&'q str> {
        let known = self.query?;
        query
            .split('&')
            .map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name))
            .find(|name| !name.is_empty() && !known.contains(name))
    }
}

/// Which application's file.
const SOURCE: &[&str] = &["source"];
/// Of a list.
const LIST: &[&str] =
    &["state", "dest", "kind", "to", "key", "q", "before_ms", "after", "limit", "source", "reveal"];

/// Of a shape.
const SHAPE: &[&str] = &["state", "dest", "kind", "to", "older", "source"];

/// Largest body of new messages, bytes: a few times the largest payload.
const MESSAGES_BYTES_MAX: usize = super::wire::BODY_BYTES_MAX;

/// All calls.
pub const ROUTES: &[Route] = &[
    get("/healthz", Guard::Open, health::alive),
    get("/readyz", Guard::Open, health::ready),
    post("/v1/reports/{destination}/{secret}", Guard::PathSecret, REPORT_BYTES_MAX, reports::take_in),
    post("/v1/adopt", Guard::Token, FIELDS_BYTES_MAX, adopt::adopt).with(&[]),
    get("/v1/status", Guard::Token, look::status).with(&[]),
    get("/v1/shape", Guard::Token, look::shape).with(SHAPE),
    get("/v1/messages", Guard::Token, look::messages).with(LIST),
    post("/v1/messages", Guard::Token, MESSAGES_BYTES_MAX, enqueue::take_in).with(&[]),
    get("/v1/messages/{id}", Guard::Token, look::message).with(&["source", "reveal"]),
    post("/v1/messages/{id}/settle", Guard::Token, FIELDS_BYTES_MAX, settle::settle).with(SOURCE),
    post("/v1/messages/{id}/hold", Guard::Token, FIELDS_BYTES_MAX, messages::hold).with(SOURCE),
    post("/v1/messages/{id}/release", Guard::Token, FIELDS_BYTES_MAX, messages::release).with(SOURCE),
    post("/v1/messages/{id}/cancel", Guard::Token, FIELDS_BYTES_MAX, messages::cancel).with(SOURCE),
    post("/v1/messages/{id}/try-now", Guard::Token, FIELDS_BYTES_MAX, messages::try_now).with(SOURCE),
    get("/v1/destinations", Guard::Token, look::destinations).with(&[]),
    get("/v1/destinations/{name}", Guard::Token, look::destination).with(&[]),
    post("/v1/destinations/{name}/pause", Guard::Token, FIELDS_BYTES_MAX, destinations::pause).with(&[]),
    post("/v1/destinations/{name}/resume", Guard::Token, FIELDS_BYTES_MAX, destinations::resume).with(&[]),
    post("/v1/destinations/{name}/probe", Guard::Token, FIELDS_BYTES_MAX, destinations::probe).with(&[]),
];

/// What a request means.
pub(super) enum Found<'p> {
    /// This call.
    Route(&'static Route, [&'p str; NAMES_MAX]),
    /// The path exists, for this other method.
    Method(&'static str),
    /// No such path.
    Nothing,
}

/// Looks the request up; `path` is without its query.
pub(super) fn find(method: Method, path: &str) -> Found<'_> {
    let mut other = None;
    for route in ROUTES {
        if let Some(names) = names(route.path, path) {
            if route.method == method {
                return Found::Route(route, names);
            }
            other = Some(if route.method == Method::Get { "GET" } else { "POST" });
        }
    }
    other.map_or(Found::Nothing, Found::Method)
}

fn names<'p>(pattern: &str, path: &'p str) -> Option<[&'p str; NAMES_MAX]> {
    let mut names = [""; NAMES_MAX];
    let mut next = names.iter_mut();
    let mut given = path.split('/');
    for wanted in pattern.split('/') {
        let segment = given.next()?;
        if wanted.starts_with('{') {
            if segment.is_empty() {
                return None;
            }
            *next.next()? = segment;
        } else if wanted != segment {
            return None;
        }
    }
    given.next().is_none().then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_by_their_segments() {
        let check = |method, path: &str| match find(method, path) {
            Found::Route(route, names) => format!("{} {}", route.path, names.join(",")),
            Found::Method(allowed) => format!("405 {allowed}"),
            Found::Nothing => "404".to_owned(),
        };
        assert_eq!(check(Method::Get, "/healthz"), "/healthz ,");
        assert_eq!(check(Method::Post, "/healthz"), "405 GET");
        assert_eq!(check(Method::Other, "/v1/messages/ow-1/settle"), "405 POST");
        assert_eq!(check(Method::Post, "/v1/messages/ow-1/settle"), "/v1/messages/{id}/settle ow-1,");
        assert_eq!(check(Method::Post, "/v1/reports/biz/s3"), "/v1/reports/{destination}/{secret} biz,s3");
        for nothing in
            ["/", "/healthz/", "/v1/reports/biz", "/v1/reports/biz/", "/v1/reports//s", "/v1/reports/biz/s/x"]
        {
            assert_eq!(check(Method::Post, nothing), "404", "{nothing}");
        }
    }

    #[test]
    fn every_path_fits_its_names_and_the_reader() {
        for route in ROUTES {
            assert!(route.path.matches('{').count() <= NAMES_MAX, "{}", route.path);
            assert!(route.body_bytes_max <= super::super::wire::BODY_BYTES_MAX, "{}", route.path);
        }
    }
}
