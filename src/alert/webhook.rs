//! Hook: a Slack-compatible webhook. One POST per notice through the crate's own client: no redirect is followed, no
//! proxy of the environment is used, the whole call is bounded. The url is a secret and is in no text from here.

use std::time::Duration;

use super::book::Notice;
use super::notifier::{Hook, Refusal};
use super::words::{Speaker, slack};
use crate::config::Secret;
use crate::vendor::client::{Client, ClientSettings, Exchange};

/// Name in `alert_told`.
pub const NAME: &str = "webhook";
/// Whole call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Name, connect and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The hook.
pub struct Webhook {
    client: Client,
    url: Secret,
    speaker: Speaker,
}

impl Webhook {
    /// Opens no connection.
    pub fn new(url: Secret, speaker: Speaker) -> Result<Self, String> {
        let client = Client::new(&ClientSettings {
            timeout: TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            // Alerts are rare: a kept connection would be dead by the next one.
            keep_alive: Duration::ZERO,
            idle_max: 0,
            ca_file: None,
            proxy: None,
        })?;
        Ok(Self { client, url, speaker })
    }
}

impl Hook for Webhook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn deliver(&mut self, notice: &Notice, _stop: &dyn Fn() -> bool) -> Result<(), Refusal> {
        let body = slack(&self.speaker.line(notice));
        let headers = [("Content-Type", "application/json")];
        let (exchange, _) = self.client.post_once(self.url.reveal(), &headers, &body);
        match exchange {
            Exchange::Answered(answer) if (200..300).contains(&answer.status) => Ok(()),
            Exchange::Answered(answer) => {
                let wait = answer.header("retry-after").and_then(|text| text.trim().parse().ok());
                let what = match answer.status {
                    300..=399 => "a redirect, which is not followed",
                    401 | 403 | 404 | 410 => "is the secret still good?",
                    _ => "refused",
                };
                Err(Refusal {
                    reason: format!("status {}: {what}", answer.status),
                    wait: wait.map(Duration::from_secs),
                })
            }
            // Told again if it did arrive: twice is better than never here.
            Exchange::Unknown { reason, .. } | Exchange::NotSent { reason, .. } => {
                Err(Refusal { reason, wait: None })
            }
        }
    }
}
