//! F9 F14 F15 F22.

use std::time::{Duration, Instant};

use crate::support::World;

#[test]
fn f09_no_clear_answer_is_error_and_never_sent_again() {
    let world = World::new();
    let rules = [
        "reference=ID0,hang=20s",
        "reference=ID1,status=500",
        "reference=ID2,reset=read",
        "reference=ID3,cut=head",
        "reference=ID4,cut=body",
        "reference=ID5,garbage",
        "reference=ID6,html=502",
        "reference=ID7,close=read",
        "reference=ID8,status=504",
    ];
    let ids: Vec<String> = (0..rules.len()).map(|i| world.put_plain(&format!("k{i}"))).collect();
    let rules: Vec<String> = rules
        .iter()
        .zip(&ids)
        .enumerate()
        .map(|(i, (rule, id))| rule.replace(&format!("ID{i}"), id))
        .collect();
    world.faults(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    let agent = world.agent();
    for id in &ids {
        world.wait_inbox(id, "ERROR");
        world.wait_outbox(id, "PUBLISHED");
    }
    world.wait("alerts", |world| world.alerts("ERROR") == rules.len() as i64);
    agent.stop();
    world.faults(&[]);
    let agent = world.agent();
    let other = world.put_plain("other");
    world.wait_inbox(&other, "SENT");
    for (id, rule) in ids.iter().zip(&rules) {
        assert_eq!(world.arrivals(id), 1, "{rule}");
        assert_eq!(world.inbox_state(id).as_deref(), Some("ERROR"));
    }
    agent.stop();
}

#[test]
fn f14_a_kept_connection_that_the_vendor_closed_never_repeats_a_request() {
    for rule in ["close=idle,every=3", "close=answer,every=3", "reset=idle,every=2"] {
        let world = World::with("", "keep_alive = \"3s\"");
        world.faults(&[rule]);
        let agent = world.agent();
        for burst in 0..6 {
            world.put_many(&format!("burst{burst}"), 40);
            let done = (burst + 1) * 40;
            world.wait("the burst is settled", |world| {
                world.count("SELECT count(*) FROM inbox WHERE status IN ('SENT', 'ERROR')") == done
            });
        }
        let totals = world.sandbox.ledger().totals();
        assert_eq!(totals.repeated, 0, "{rule}");
        assert!(totals.arrived <= 240, "{rule}");
        let sent = world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'");
        assert!(sent >= 120, "{rule}: {sent} sent");
        agent.stop();
    }
}

#[test]
fn f15_redirects_are_not_followed() {
    let world = World::with(
        "[retry]\nquick = { times = 1, every = \"100ms\" }\nlater = { times = 0, every = \"1s\" }\n",
        "",
    );
    let codes = [301, 302, 303, 307, 308];
    let ids: Vec<String> = codes.iter().map(|code| world.put_plain(&format!("k{code}"))).collect();
    let rules: Vec<String> = codes
        .iter()
        .zip(&ids)
        .map(|(code, id)| format!("path=/send,reference={id},redirect={code}"))
        .collect();
    world.faults(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    let agent = world.agent();
    for (code, id) in codes.iter().zip(&ids) {
        if *code < 307 {
            world.wait_inbox(id, "ERROR");
            assert_eq!(world.arrivals(id), 1, "{code}");
        } else {
            // Certainly not sent: tried once more, then it waits for a person. Never followed: each try is one request.
            world.wait_outbox(id, "PARKED");
            assert_eq!(world.inbox_state(id), None, "{code}");
            assert_eq!(world.arrivals(id), 2, "{code}");
        }
    }
    agent.stop();
}

#[test]
fn f22_429_with_retry_after_waits_and_uses_no_attempt() {
    a_429_waits("retry_after=2");
}

#[test]
fn f22_429_with_retry_after_as_a_date_waits_and_uses_no_attempt() {
    a_429_waits("retry_date=2s");
}

#[test]
fn f22_429_with_a_used_up_budget_in_one_field_waits_and_uses_no_attempt() {
    a_429_waits("header=RateLimit:\"burst\";r=0;t=2");
}

/// What waited for its turn of the rate when the pause came waits for its end, too.
#[test]
fn f22_429_with_retry_after_also_holds_what_waits_for_the_rate() {
    let world = World::new();
    let settings = std::fs::read_to_string(&world.config).expect("reads");
    let paced = settings.replace("reference_header = ", "rate = \"4/s\"\nreference_header = ");
    assert_ne!(settings, paced);
    std::fs::write(&world.config, paced).expect("written");
    world.faults(&["status=429,retry_after=3,first=1"]);
    let ids: Vec<String> = (0..4).map(|number| world.put_plain(&format!("k{number}"))).collect();
    let agent = world.agent();
    agent.wait_log("asks for a pause");
    let asked = Instant::now();
    std::thread::sleep(Duration::from_millis(1_500));
    // A person's probe does not end what the vendor asked for.
    let (_, said, _) = world.onceward(&["dest", "probe", "gateway"]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(world.count("SELECT count(*) FROM inbox"), 0, "{said}\n{}", agent.log());
    for id in &ids {
        world.wait_inbox(id, "SENT");
    }
    assert!(asked.elapsed() >= Duration::from_millis(2_900), "{:?}", asked.elapsed());
    agent.stop();
}

fn a_429_waits(how: &str) {
    let world = World::new();
    world.faults(&[&format!("status=429,{how},first=1")]);
    let id = world.put_plain("k");
    let begun = Instant::now();
    let agent = world.agent();
    world.wait_inbox(&id, "SENT");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(world.outbox_state(&id).1, 1, "only the claim that was sent on counts");
    assert_eq!(world.count("SELECT count(*) FROM attempt"), 2);
    agent.stop();
}
