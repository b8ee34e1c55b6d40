//! `POST /v1/reports/{destination}/{secret}`: the vendor's webhook. Stored durably with its effect, then 200.
//!
//! A wrong secret, an unknown destination and one without a webhook are the same 404, and the body is not looked at. What
//! cannot be read is 400 and an alert; what cannot be stored now is 503: the vendor says both again.

use super::routes::Request;
use super::wire::Answer;
use super::{Context, committed, guard};
use crate::alert::Cause;
use crate::db::kill;
use crate::poller;
use crate::report::{self, Report, Unreadable, Way};
use crate::vendor::json;

/// Most reports in one request; the vendor's own lists have at most as many.
const REPORTS_MAX: usize = 1_000;

pub(super) fn take_in(context: &Context, request: &Request<'_>) -> Answer {
    let [name, secret] = request.names;
    // Every webhook is compared, so that the time tells nothing of which destinations have one.
    let mut found = None;
    for (account, right) in &context.webhooks {
        let same = guard::same_secret(secret, right);
        if same && account.destination.as_str() == name {
            found = Some(account);
        }
    }
    let Some(account) = found else { return Answer::text(404, "not found\n") };
    let destination = &account.destination;
    let reports = match read(request.body) {
        Ok(reports) => reports,
        Err(Unreadable(why)) => {
            context.alerts.raise(
                Cause::ReportUnclear,
                destination.as_str(),
                format!("a report came that cannot be read: {why}; it was answered 400"),
            );
            return Answer::text(400, format!("{why}\n"));
        }
    };
    let (work, reply) = poller::take_in(account, reports.clone(), Way::Webhook, &context.policy);
    context.writer.submit(work);
    match committed(&reply) {
        Ok(effects) => {
            poller::tell(&context.alerts, &context.inbox, destination, &reports, &effects);
            let _ = kill::point("webhook-before-answer");
            Answer::text(200, "ok\n")
        }
        Err(answer) => answer,
    }
}

/// One report, or a list of them.
pub(crate) fn read(body: &[u8]) -> Result<Vec<Report>, Unreadable> {
    let Some(value) = json::strict(body) else {
        return Err(Unreadable("the body is not JSON, or names a key twice".into()));
    };
    match &value {
        serde_json::Value::Array(list) if list.len() > REPORTS_MAX => {
            Err(Unreadable(format!("more than {REPORTS_MAX} reports at once")))
        }
        serde_json::Value::Array(list) => list.iter().map(report::normalise).collect(),
        one => Ok(vec![report::normalise(one)?]),
    }
}
