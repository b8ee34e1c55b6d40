//! A vendor login: one token for all threads, one login at a time, renewed before claims and never inside a send.
//!
//! Keeps and hands out; what a login is and what its failure means is the adapter's. Life is measured on the
//! monotonic clock alone, so a jump of the wall clock neither keeps a dead token nor drops a living one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Secret;
use crate::message::Reply;

/// Renewed this long before its end; the vendor advises about a minute, and a send may take part of one.
const MARGIN: Duration = Duration::from_secs(120);
/// A token serves at least this long, however short its life is said to be: never a login for each message.
const SERVES_MIN: Duration = Duration::from_secs(1);

/// What a login brought.
pub struct Issued {
    /// The token.
    pub token: Secret,
    /// How long it lives, counted from before the call that brought it.
    pub life: Duration,
}

/// The cache; shared by a destination's threads.
#[derive(Default)]
pub struct Tokens {
    shelf: Mutex<Shelf>,
    /// Held over a login. Apart from the shelf, so that sends with a living token are not held up by it.
    one_login: Mutex<()>,
}

#[derive(Default)]
struct Shelf {
    held: Option<Held>,
    /// Logins that have ended, well or not.
    logins: u64,
    /// How the latest login failed, if it did.
    failure: Option<Box<Reply>>,
}

struct Held {
    token: Secret,
    renew_at: Instant,
}

impl Tokens {
    /// Whether a fresh token is at hand.
    pub fn is_fresh(&self) -> bool {
        self.shelf().is_fresh(Instant::now())
    }

    /// Makes sure that a fresh token is at hand, by `login` if need be. Threads that come while another logs in
    /// wait for it and share what it brought, a failure too: five threads are one login, not five in a row.
    pub fn renew(&self, login: impl FnOnce() -> Result<Issued, Box<Reply>>) -> Result<(), Box<Reply>> {
        self.renew_at(Instant::now, login)
    }

    fn renew_at(
        &self,
        now: impl Fn() -> Instant,
        login: impl FnOnce() -> Result<Issued, Box<Reply>>,
    ) -> Result<(), Box<Reply>> {
        let logins_seen = {
            let shelf = self.shelf();
            if shelf.is_fresh(now()) {
                return Ok(());
            }
            shelf.logins
        };
        let _one_login = self.one_login.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let shelf = self.shelf();
            if shelf.is_fresh(now()) {
                return Ok(());
            }
            if shelf.logins != logins_seen
                && let Some(failure) = &shelf.failure
            {
                return Err(failure.clone());
            }
        }
        let begun = now();
        let result = login();
        let mut shelf = self.shelf();
        shelf.logins += 1;
        match result {
            Ok(Issued { token, life }) => {
                let serves = life.saturating_sub(MARGIN).max(life / 2).max(SERVES_MIN);
                shelf.held = Some(Held { token, renew_at: begun + serves });
                shelf.failure = None;
                Ok(())
            }
            Err(failure) => {
                shelf.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    /// The token at hand, for a send that [`Tokens::renew`] has prepared; `None` if it was forgotten since.
    pub fn at_hand(&self) -> Option<Secret> {
        self.shelf().held.as_ref().map(|held| held.token.clone())
    }

    /// The vendor does not know this token any more. A newer one that another thread fetched meanwhile stays.
    pub fn forget(&self, token: &Secret) {
        let mut shelf = self.shelf();
        if shelf.held.as_ref().is_some_and(|held| held.token.reveal() == token.reveal()) {
            shelf.held = None;
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // Whole values are put in and taken out, so a panic elsewhere leaves nothing half-done.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn is_fresh(&self, now: Instant) -> bool {
        self.held.as_ref().is_some_and(|held| now < held.renew_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{NotSentKind, NotSentProof, Outcome, Timing};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    const DAY: Duration = Duration::from_secs(86_400);

    fn issued(name: &str, life: Duration) -> Result<Issued, Box<Reply>> {
        Ok(Issued { token: Secret::new(name.to_owned()), life })
    }

    fn failed() -> Box<Reply> {
        Box::new(Reply {
            outcome: Outcome::NotSent {
                kind: NotSentKind::Unreachable,
                code: None,
                reason: "login failed".into(),
                proof: NotSentProof::vendor_only(),
            },
            http_status: None,
            timing: Timing::default(),
            pause: None,
        })
    }

    fn name(tokens: &Tokens) -> Option<String> {
        tokens.at_hand().map(|token| token.reveal().to_owned())
    }

    #[test]
    fn many_threads_log_in_once() {
        let (tokens, logins, start) = (Tokens::default(), AtomicU32::new(0), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let login = || issued(&format!("t{}", logins.fetch_add(1, Ordering::SeqCst)), DAY);
                    tokens.renew(login).expect("logged in");
                    assert_eq!(name(&tokens).as_deref(), Some("t0"));
                });
            }
        });
        assert_eq!(logins.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn who_waits_for_a_failing_login_shares_its_failure_and_who_comes_later_tries_anew() {
        let tokens = Tokens::default();
        let (inside, is_inside) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                tokens.renew(move || {
                    inside.send(()).expect("the test listens");
                    may_go_on.recv().expect("the test speaks");
                    Err(failed())
                })
            });
            is_inside.recv().expect("the first thread is in its login");
            // The second looks (and sees no login ended) before the first may end: the clock is read only there.
            let (looked, has_looked) = mpsc::channel();
            let tokens = &tokens;
            let second = scope.spawn(move || {
                let now = || {
                    let _ = looked.send(());
                    Instant::now()
                };
                tokens.renew_at(now, || panic!("a second login"))
            });
            has_looked.recv().expect("an empty shelf is looked at");
            // It still holds the shelf, or has gone on to wait for the login; either way it has read the count
            // before the first can add to it, for that takes the shelf.
            go_on.send(()).expect("the first thread waits");
            assert!(first.join().expect("no panic").is_err());
            assert!(second.join().expect("no second login").is_err());
        });
        assert!(tokens.renew(|| issued("later", DAY)).is_ok());
        assert_eq!(name(&tokens).as_deref(), Some("later"));
    }

    #[test]
    fn a_forgotten_token_is_renewed_and_anothers_stays() {
        let tokens = Tokens::default();
        tokens.renew(|| issued("old", DAY)).expect("logged in");
        tokens.forget(&Secret::new("some other".into()));
        assert_eq!(name(&tokens).as_deref(), Some("old"));
        tokens.forget(&Secret::new("old".into()));
        assert_eq!(name(&tokens), None);
        tokens.renew(|| issued("new", DAY)).expect("logged in");
        // The late answer of a thread that still used the old one.
        tokens.forget(&Secret::new("old".into()));
        assert_eq!(name(&tokens).as_deref(), Some("new"));
    }

    #[test]
    fn renewed_a_margin_before_the_end_but_never_for_each_message() {
        let begun = Instant::now();
        let check = |life: Duration, fresh_for: Duration| {
            let tokens = Tokens::default();
            tokens.renew_at(|| begun, || issued("t", life)).expect("logged in");
            let just_before = begun + fresh_for - Duration::from_millis(1);
            tokens.renew_at(|| just_before, || panic!("renewed too early")).expect("fresh");
            tokens.renew_at(|| begun + fresh_for, || issued("u", life)).expect("logged in");
            assert_eq!(name(&tokens).as_deref(), Some("u"), "life {life:?}");
        };
        check(DAY, DAY - MARGIN);
        check(MARGIN, MARGIN / 2);
        check(Duration::from_secs(10), Duration::from_secs(5));
        check(Duration::ZERO, SERVES_MIN);
    }
}
