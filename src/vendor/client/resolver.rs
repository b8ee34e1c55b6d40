//! Name look-up for the HTTP client: cached, bounded by the call's own deadline, at most one thread a name.
//!
//! Part of the HTTP client's room. Never connects, never decides what a failure means. (ureq's own
//! resolver starts a thread for every call, even for an address, and leaves it behind for as long as the system's
//! resolver blocks.)

use std::collections::HashMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::{Error, http::Uri};

/// A look-up this young is used without asking again.
const FRESH: Duration = Duration::from_secs(60);
/// A look-up this young is used when asking again fails or is slow: a wrong old address costs a failed
/// connect (certainly not sent), a dead name server would cost every message.
const USABLE: Duration = Duration::from_secs(3600);
/// How long a call that holds a usable old address waits for the fresh one.
const STALE_WAIT: Duration = Duration::from_millis(250);
/// Bound of a look-up when the call gives none (the client always gives one).
const WAIT_MAX: Duration = Duration::from_secs(30);
/// As many addresses as ureq's answer can hold.
const ADDRESSES_MAX: usize = 16;
/// A look-up thread needs no deep stack.
const STACK_BYTES: usize = 256 * 1024;

/// A failed look-up, told apart from every other error by its type.
#[derive(Debug)]
pub(super) struct LookupFailed(String);

impl fmt::Display for LookupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for LookupFailed {}

/// How a name is looked up; the system's way except in tests. Gets `host:port`.
type Lookup = fn(&str) -> std::io::Result<Vec<SocketAddr>>;

/// The resolver; clones share one cache. It holds one entry a destination, so it needs no eviction.
#[derive(Clone)]
pub(super) struct CachedResolver {
    shared: Arc<(Mutex<HashMap<String, Name>>, Condvar)>,
    lookup: Lookup,
}

impl Default for CachedResolver {
    fn default() -> Self {
        Self::with_lookup(|name| Ok(name.to_socket_addrs()?.collect()))
    }
}

impl fmt::Debug for CachedResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CachedResolver")
    }
}

/// What is known of one `host:port`.
#[derive(Default)]
struct Name {
    addresses: Vec<SocketAddr>,
    /// When `addresses` were learnt.
    learnt: Option<Instant>,
    /// A look-up thread is at work.
    running: bool,
    /// Look-ups ended so far; a waiter sees by it that one ended after it began to wait.
    ended: u64,
    /// Why the last one failed.
    failure: Option<String>,
}

impl Name {
    fn younger_than(&self, age: Duration) -> Option<&[SocketAddr]> {
        self.learnt.filter(|at| at.elapsed() < age).map(|_| self.addresses.as_slice())
    }
}

impl CachedResolver {
    fn with_lookup(lookup: Lookup) -> Self {
        Self { shared: Arc::default(), lookup }
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, Name>> {
        // Every change under this lock is a plain assignment, so a poisoned map is still a good one.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of `host:port`, or why there are none; `None` when `end` came first.
    fn addresses(&self, name: &str, end: Instant) -> Option<Result<Vec<SocketAddr>, String>> {
        if let Ok(address) = name.parse() {
            return Some(Ok(vec![address]));
        }
        let mut names = self.names();
        let entry = names.entry(name.to_owned()).or_default();
        if let Some(addresses) = entry.younger_than(FRESH) {
            return Some(Ok(addresses.to_vec()));
        }
        let ended_before = entry.ended;
        let mut end = end;
        if entry.younger_than(USABLE).is_some() {
            end = end.min(Instant::now() + STALE_WAIT);
        }
        if !entry.running {
            match self.start_lookup(name) {
                Ok(()) => entry.running = true,
                Err(error) => return Some(Err(format!("no thread for it ({error})"))),
            }
        }
        loop {
            let entry = names.entry(name.to_owned()).or_default();
            let left = end.saturating_duration_since(Instant::now());
            if entry.ended != ended_before || left.is_zero() {
                if let Some(addresses) = entry.younger_than(USABLE) {
                    return Some(Ok(addresses.to_vec()));
                }
                if entry.ended != ended_before {
                    return Some(Err(entry.failure.clone().unwrap_or_else(|| "no address".to_owned())));
                }
                return None;
            }
            names = self.shared.1.wait_timeout(names, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn start_lookup(&self, name: &str) -> std::io::Result<()> {
        let (resolver, name) = (self.clone(), name.to_owned());
        std::thread::Builder::new()
            .name("lookup".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let found = (resolver.lookup)(&name);
                let mut names = resolver.names();
                let entry = names.entry(name).or_default();
                entry.running = false;
                entry.ended += 1;
                match found {
                    Ok(addresses) if !addresses.is_empty() => {
                        entry.addresses = addresses;
                        entry.learnt = Some(Instant::now());
                        entry.failure = None;
                    }
                    Ok(_) => entry.failure = Some("no address".to_owned()),
                    Err(error) => entry.failure = Some(without_prefix(&error.to_string())),
                }
                resolver.shared.1.notify_all();
            })
            .map(drop)
    }
}

/// std puts "failed to lookup address information: " before the system's words; ours come before it already.
fn without_prefix(text: &str) -> String {
    text.strip_prefix("failed to lookup address information: ").unwrap_or(text).to_owned()
}

impl Resolver for CachedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let name = uri
            .scheme()
            .zip(uri.authority())
            .and_then(|(scheme, authority)| DefaultResolver::host_and_port(scheme, authority))
            .ok_or_else(|| Error::BadUri(String::new()))?;
        let wait = if timeout.after.is_not_happening() { WAIT_MAX } else { (*timeout.after).min(WAIT_MAX) };
        let found = match self.addresses(&name, Instant::now() + wait) {
            Some(Ok(found)) => found,
            Some(Err(why)) => return Err(Error::Other(Box::new(LookupFailed(why)))),
            None => return Err(Error::Timeout(ureq::Timeout::Resolve)),
        };
        let mut answer = self.empty();
        for address in config.ip_family().keep_wanted(found.into_iter()).take(ADDRESSES_MAX) {
            answer.push(address);
        }
        if answer.is_empty() { Err(Error::HostNotFound) } else { Ok(answer) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn in_ms(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[test]
    fn an_address_needs_no_lookup() {
        let resolver = CachedResolver::with_lookup(|_| panic!("looked up an address"));
        assert_eq!(
            resolver.addresses("127.0.0.1:80", in_ms(0)),
            Some(Ok(vec!["127.0.0.1:80".parse().unwrap()]))
        );
        assert_eq!(resolver.addresses("[::1]:80", in_ms(0)), Some(Ok(vec!["[::1]:80".parse().unwrap()])));
    }

    #[test]
    fn a_slow_lookup_keeps_the_deadline_and_has_one_thread() {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        static GATE: Mutex<()> = Mutex::new(());
        let shut = GATE.lock().unwrap();
        let resolver = CachedResolver::with_lookup(|_| {
            STARTED.fetch_add(1, Ordering::SeqCst);
            drop(GATE.lock());
            Ok(vec!["127.0.0.1:9".parse().unwrap()])
        });
        let begun = Instant::now();
        for _ in 0..10 {
            assert_eq!(resolver.addresses("slow.test:9", in_ms(5)), None);
        }
        assert!(begun.elapsed() < Duration::from_secs(2));
        drop(shut);
        assert!(matches!(resolver.addresses("slow.test:9", in_ms(5_000)), Some(Ok(_))));
        assert!(
            matches!(resolver.addresses("slow.test:9", in_ms(0)), Some(Ok(_))),
            "second one is from the cache"
        );
        assert_eq!(STARTED.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_old_address_stands_in_for_a_failed_lookup_and_a_very_old_one_does_not() {
        let resolver = CachedResolver::with_lookup(|_| Err(std::io::Error::other("name server is ill")));
        let failed = Some(Err("name server is ill".to_owned()));
        assert_eq!(resolver.addresses("old.test:9", in_ms(5_000)), failed);
        let address: SocketAddr = "127.0.0.1:9".parse().unwrap();
        for (age, expected) in [(FRESH, Some(Ok(vec![address]))), (USABLE, failed)] {
            // A machine that started a minute ago cannot show an hour-old answer; skip rather than mislead.
            let Some(learnt) = Instant::now().checked_sub(age) else { continue };
            let mut names = resolver.names();
            let entry = names.get_mut("old.test:9").unwrap();
            entry.addresses = vec![address];
            entry.learnt = Some(learnt);
            drop(names);
            assert_eq!(resolver.addresses("old.test:9", in_ms(5_000)), expected);
        }
    }
}
