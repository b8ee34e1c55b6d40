//! `POST /v1/reports/{destination}/{secret}`: the vendor's webhook. Stored durably with its effect, then 200.
//!
//! A wrong secret, an unknown destination and one without a webhook are the same 404, and the body is not looked at. Of
//! several at once, what cannot be read is kept as that, with an alert, and keeps nobody from the others: 200. Where
//! nothing can be read it is 400 and an alert; what cannot be stored now is 503: the vendor says both again.

use super::routes::Request;
use super::wire::Answer;
use super::{Context, committed, guard};
use crate::alert::Cause;
use crate::db::kill;
use crate::poller;
use crate::report::intake::Taken;
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
    let Posted { reports, readable, why } = match read(request.body) {
        Ok(posted) => posted,
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
    let effects = match committed(&reply) {
        Ok(effects) => effects,
        Err(answer) => return answer,
    };
    let (clear, unclear) = effects.split_at(readable.min(effects.len()));
    poller::tell(&context.alerts, &context.inbox, destination, &reports[..readable], clear);
    // A repeat was told when it came first.
    let new = unclear.iter().filter(|effect| effect.taken == Taken::New).count();
    if let (Some(Unreadable(why)), 1..) = (why, new) {
        let of = reports.len();
        let text = format!(
            "{new} of {of} reports that came at once cannot be read: {why}; kept as that in v_report, the others are taken in"
        );
        context.alerts.raise_many(Cause::ReportUnclear, destination.as_str(), text, new as i64);
    }
    let _ = kill::point("webhook-before-answer");
    Answer::text(200, "ok\n")
}

/// What came.
#[derive(Debug)]
pub(crate) struct Posted {
    /// Those that can be read, then what stands for the others.
    pub reports: Vec<Report>,
    /// How many can be read.
    pub readable: usize,
    /// Why the first of the others cannot.
    pub why: Option<Unreadable>,
}

/// One report, or a list of them. An error where none can be read.
pub(crate) fn read(body: &[u8]) -> Result<Posted, Unreadable> {
    let Some(value) = json::strict(body) else {
        return Err(Unreadable("the body is not JSON, or names a key twice".into()));
    };
    let list = match &value {
        serde_json::Value::Array(list) if list.len() > REPORTS_MAX => {
            return Err(Unreadable(format!("more than {REPORTS_MAX} reports at once")));
        }
        serde_json::Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let (mut reports, mut unreadable, mut first) = (Vec::new(), Vec::new(), None);
    for value in list {
        match report::normalise(value) {
            Ok(report) => reports.push(report),
            Err(why) => {
                first.get_or_insert(why);
                unreadable.push(Report::unreadable(value));
            }
        }
    }
    match first {
        Some(why) if reports.is_empty() => Err(why),
        why => {
            let readable = reports.len();
            reports.append(&mut unreadable);
            Ok(Posted { reports, readable, why })
        }
    }
}
