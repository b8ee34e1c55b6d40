//! Pure: outside production only listed recipients ever get anything. Asked by the relay, by the worker and right
//! before the call, so that a mistake in one of them does not text a customer from a test system.

use super::number::canonical;

/// The rule of one agent.
#[derive(Clone, Debug)]
pub struct Environment {
    production: bool,
    /// Canonical, sorted.
    allowed: Vec<String>,
}

impl Environment {
    /// From `[agent] environment` and `allowed_recipients`.
    pub fn new(environment: &str, allowed_recipients: &[String]) -> Self {
        let mut allowed: Vec<String> = allowed_recipients.iter().map(|entry| canonical(entry)).collect();
        allowed.sort_unstable();
        Self { production: environment == "production", allowed }
    }

    /// Whether this recipient may get anything from here.
    pub fn allows(&self, recipient: &str) -> bool {
        self.production
            || self.allowed.binary_search_by(|entry| entry.as_str().cmp(recipient)).is_ok()
            || self.allowed.binary_search(&canonical(recipient)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_production_sends_to_everybody() {
        let listed = ["010-0000-0001".to_owned(), "store-1".to_owned(), "+1 212 555 0100".to_owned()];
        for (environment, recipient, allowed) in [
            ("production", "01099999999", true),
            ("staging", "01099999999", false),
            ("staging", "01000000001", true),
            ("staging", "+82 10 0000 0001", true),
            ("staging", "+1-212-555-0100", true),
            ("staging", "store-1", true),
            ("staging", "store1", false),
            ("Production", "01099999999", false),
            ("staging", "", false),
        ] {
            assert_eq!(
                Environment::new(environment, &listed).allows(recipient),
                allowed,
                "{environment} {recipient}"
            );
        }
        assert!(!Environment::new("test", &[]).allows("01000000001"));
    }
}
