//! A vendor login: cached, shared by all threads, one login at a time, renewed before claims and never inside a send.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Secret;
use crate::message::Reply;

/// Renewed this long before its end (the vendor's advice is about a minute).
const MARGIN: Duration = Duration::from_secs(90);

/// The cache.
#[derive(Default)]
pub struct Tokens {
    held: Mutex<Option<Held>>,
}

struct Held {
    token: Secret,
    until: Instant,
}

impl Tokens {
    /// The token if it is fresh, else whatever `login` brings: the token and its life. The lock is held over the
    /// login, so that a hundred threads log in once.
    pub fn get(
        &self,
        login: impl FnOnce() -> Result<(Secret, Duration), Box<Reply>>,
    ) -> Result<Secret, Box<Reply>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.as_ref().filter(|held| Instant::now() < held.until) {
            return Ok(held.token.clone());
        }
        let (token, life) = login()?;
        // A life shorter than the margin is still used once: better than a login for each message.
        let usable = life.saturating_sub(MARGIN).max(life / 2);
        *held = Some(Held { token: token.clone(), until: Instant::now() + usable });
        Ok(token)
    }

    /// The token at hand, fresh or not: for a send that `get` has prepared.
    pub fn at_hand(&self) -> Option<Secret> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|held| held.token.clone())
    }

    /// The vendor does not know this token any more. Another thread's newer one stays.
    pub fn forget(&self, token: &Secret) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_ref().is_some_and(|held| held.token.reveal() == token.reveal()) {
            *held = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn many_threads_log_in_once_and_a_forgotten_token_is_renewed() {
        let (tokens, logins) = (Tokens::default(), AtomicU32::new(0));
        let login = || {
            let number = logins.fetch_add(1, Ordering::SeqCst);
            Ok((Secret::new(format!("t{number}")), Duration::from_secs(86_400)))
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(tokens.get(login).expect("logged in").reveal(), "t0"));
            }
        });
        assert_eq!(logins.load(Ordering::SeqCst), 1);
        tokens.forget(&Secret::new("some other".into()));
        assert_eq!(tokens.get(login).expect("logged in").reveal(), "t0", "another's token is not forgotten");
        tokens.forget(&Secret::new("t0".into()));
        assert_eq!(tokens.get(login).expect("logged in").reveal(), "t1");
    }
}
