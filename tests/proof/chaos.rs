//! The hostile vendor through the whole agent: the real binary against the breaking vendor, over HTTP and HTTPS, with kept
//! and with new connections, killed at random in every second slice.
//!
//! Goal: no id arrives again unless the vendor documented the earlier request as *not sent*, and what the agent says of
//! each message agrees with what the vendor saw. `ONCEWARD_CHAOS_AGENT_CALLS=160000` makes it as long as the experiment.
//!
//! `ONCEWARD_CHAOS_SURPLUS=1` is an experiment, not a test: the vendor also says a second yes on a kept connection while the
//! next request is on its way. HTTP/1.1 numbers no answers, so no client can tell; it counts how often that is believed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use onceward::vendor::client::{Client, ClientSettings, Exchange};

use crate::breaking_vendor::{Arrival, BreakingVendor, Tally, Told};
use crate::judge::{self, Call, Fate, Fates};
use crate::support::World;
use crate::support_http::{Authority, Flaw, Security};
use crate::{asked, scramble};

/// Nothing may stand still for longer; closed destinations are probed at least each minute.
const STUCK: Duration = Duration::from_secs(180);

/// For these any 2xx is a yes; the others ask for JSON.
fn by_status(destination: &str) -> bool {
    destination.ends_with("status")
}

fn destinations() -> Vec<String> {
    let mut names = Vec::new();
    for scheme in ["http", "https"] {
        for kept in ["new", "kept"] {
            names.extend(["json", "status"].map(|rule| format!("{scheme}-{kept}-{rule}")));
        }
    }
    names
}

/// Eight destinations at the two vendors.
fn settings(world: &World, plain: &BreakingVendor, secure: &BreakingVendor) {
    let mut text = format!(
        "[agent]\nstate_dir = {:?}\n[retry]\nquick = {{ times = 2, every = \"20ms\" }}\nlater = {{ times = 1, every = \"50ms\" }}\n",
        world.dir.path().join("state")
    );
    for name in destinations() {
        let https = name.starts_with("https");
        let at = if https { secure.address } else { plain.address };
        text += &format!(
            "[[destination]]\nname = {name:?}\ntype = \"http\"\nurl = \"{}://{at}/{name}\"\nreference_header = \"X-Reference\"\ntimeout = \"2s\"\nthreads = 4\nkeep_alive = \"{}\"\n",
            if https { "https" } else { "http" },
            if name.contains("kept") { "3s" } else { "0s" },
        );
        if https {
            text += "ca_file = \"ca.pem\"\n";
        }
        if !by_status(&name) {
            text += "accepted = { status = [\"2xx\"], json = \"/ok\", equals = [true] }\n";
        }
    }
    text += "[[route]]\nkind = \"*\"\ndestination = \"http-new-json\"\n";
    std::fs::write(&world.config, text).expect("settings are written");
}

/// One transaction of a producer: most bodies are small, some are too large for one packet.
fn enqueue(world: &World, slice: u64, count: u64) {
    let names = destinations();
    let mut connection = world.outbox();
    let tx = connection.transaction().expect("a transaction");
    for number in 0..count {
        let name = &names[(number % names.len() as u64) as usize];
        let text = "x".repeat(if number % 16 == 15 { 60_000 } else { 20 });
        tx.execute(
            "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'TEST', ?2, '01000000001', ?3)",
            (format!("{slice}:{number}"), name, format!("{{\"text\":\"{text}\"}}")),
        )
        .expect("the row is taken");
    }
    tx.commit().expect("committed");
}

/// Until nothing waits any more.
fn wait_for_the_end(world: &World, agent: &crate::support::Agent) {
    let (outbox, inbox) = (world.outbox(), world.inbox());
    let number = |connection: &rusqlite::Connection, sql| -> i64 {
        connection.query_row(sql, [], |row| row.get(0)).expect("counts")
    };
    let (mut before, mut moved) = (-1, Instant::now());
    loop {
        let waiting =
            number(&outbox, "SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING')");
        if waiting == 0 {
            return;
        }
        let calls = number(&inbox, "SELECT coalesce(max(id), 0) FROM attempt");
        if calls != before {
            (before, moved) = (calls, Instant::now());
        }
        assert!(moved.elapsed() < STUCK, "{waiting} messages stand still\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(40));
    }
}

fn sum(tallies: [Tally; 2]) -> Tally {
    let [mut one, other] = tallies;
    for (id, arrivals) in other.arrivals {
        assert!(one.arrivals.insert(id, arrivals).is_none(), "one message at both vendors");
    }
    one.nameless += other.nameless;
    one.broken_early += other.broken_early;
    one
}

#[test]
fn a_hostile_vendor_gets_no_message_twice_and_the_agent_says_what_it_saw() {
    let calls = asked("ONCEWARD_CHAOS_AGENT_CALLS", 6_000);
    let slice_size = if calls > 20_000 { 2_000 } else { 1_000 };
    let seed = asked("ONCEWARD_CHAOS_SEED", u64::from(std::process::id()));
    let surplus = asked("ONCEWARD_CHAOS_SURPLUS", 0) > 0;
    let world = World::new();
    let authority = Authority::new("known", &world.dir.path().join("ca.pem"));
    let plain = BreakingVendor::start(Security::Plain, seed << 32, surplus);
    let secure =
        BreakingVendor::start(Security::Tls(authority.server(Flaw::None)), (seed << 32) ^ (1 << 60), surplus);
    settings(&world, &plain, &secure);

    let requests = || plain.requests() + secure.requests();
    let (mut agent, mut kills, begun) = (world.agent_with(&[("RUST_LOG", "error")]), 0, Instant::now());
    for slice in 0..calls.div_ceil(slice_size) {
        enqueue(&world, slice, slice_size.min(calls - slice * slice_size));
        if slice % 2 == 1 {
            // In the middle of the slice's calls.
            let after = requests() + 1 + (scramble(seed ^ slice) % (slice_size / 2)) as usize;
            let end = Instant::now() + STUCK;
            while requests() < after && Instant::now() < end {
                std::thread::sleep(Duration::from_micros(200));
            }
            agent.kill9();
            kills += 1;
            agent = world.agent_with(&[("RUST_LOG", "error")]);
        }
        wait_for_the_end(&world, &agent);
        if slice % 10 == 9 {
            println!(
                "{} messages, {kills} kills, {} requests, {} s",
                (slice + 1) * slice_size,
                requests(),
                begun.elapsed().as_secs()
            );
        }
    }
    let (code, said, why) = world.onceward(&["verify"]);
    assert_eq!(code, 0, "beside the running agent: {said}{why}");
    agent.stop();
    let (code, said, why) = world.onceward(&["verify"]);
    assert_eq!(code, 0, "after its stop: {said}{why}");

    let tally = sum([plain.finish(), secure.finish()]);
    let fates = judge::read(&world.outbox(), &world.inbox());
    assert_eq!(fates.len() as u64, calls, "each message has its row");
    let faults = judge::faults(&fates, &tally, by_status);
    tell(&fates, &tally, kills, seed);
    assert!(
        faults.is_empty(),
        "seed {seed}: {} faults:\n{}",
        faults.len(),
        faults[..faults.len().min(20)].join("\n")
    );
    // It would prove nothing if the vendor had broken nothing, or everything.
    let count =
        |state: &str| fates.values().filter(|fate| fate.inbox.as_deref() == Some(state)).count() as u64;
    assert!(count("SENT") > calls / 2 && count("ERROR") > calls / 50 && count("FAILED") > 0);
    assert!(fates.values().any(|fate| fate.outbox == "PARKED"));
    assert!(
        fates.values().flat_map(|fate| &fate.calls).any(|call| call.outcome == "NOT_SENT" && !call.answered)
    );

    planted_lies_are_found(&fates, tally);
}

/// The counts for `PROOF.md`.
fn tell(fates: &Fates, tally: &Tally, kills: u64, seed: u64) {
    let mut ends = BTreeMap::<String, u64>::new();
    let mut by_scheme = BTreeMap::<&str, u64>::new();
    for (id, fate) in fates {
        *ends.entry(fate.inbox.clone().unwrap_or(fate.outbox.clone())).or_default() += 1;
        let scheme = if fate.destination.starts_with("https") { "HTTPS" } else { "HTTP" };
        *by_scheme.entry(scheme).or_default() += tally.arrivals.get(id).map_or(0, Vec::len) as u64;
    }
    let again = tally.arrivals.values().filter(|arrivals| arrivals.len() > 1).count();
    let unsent = fates.values().flat_map(|fate| &fate.calls);
    let unsent = unsent.filter(|call| call.outcome == "NOT_SENT" && !call.answered).count();
    let given_up = fates.values().filter(|fate| fate.given_up).count();
    let lost_yes = fates.iter().filter(|(id, fate)| {
        fate.inbox.as_deref() == Some("ERROR")
            && tally
                .arrivals
                .get(*id)
                .and_then(|arrivals| arrivals.last())
                .is_some_and(|last| last.told == Told::Good)
    });
    println!(
        "seed {seed}: {} messages, requests {by_scheme:?}, {kills} kills; ends {ends:?} ({given_up} of a dead agent, {} with a good answer that was lost on the way; {} SENT on an answer that nobody had asked for); {} connections broken before a request, {unsent} calls not sent for it; {again} came again after a documented 'not sent'",
        fates.len(),
        lost_yes.count(),
        judge::crossed(fates, tally).len(),
        tally.broken_early,
    );
}

/// A judge that finds nothing in anything would prove nothing: each kind of lie, one at a time, is told by it.
fn planted_lies_are_found(fates: &Fates, mut tally: Tally) {
    let find = |wanted: &dyn Fn(&Fate, &[Arrival]) -> bool, tally: &Tally| {
        let found =
            fates.iter().find(|(id, fate)| wanted(fate, tally.arrivals.get(*id).map_or(&[], Vec::as_slice)));
        found.map(|(id, _)| id.clone()).expect("there is one of each kind")
    };
    let inbox = |fate: &Fate, state: &str| fate.inbox.as_deref() == Some(state);
    let sent = find(&|fate, _| inbox(fate, "SENT"), &tally);
    let error = find(
        &|fate, seen| {
            inbox(fate, "ERROR") && seen.len() == 1 && seen[0].told != Told::Good && !seen[0].surplus
        },
        &tally,
    );
    let failed = find(&|fate, _| inbox(fate, "FAILED"), &tally);
    let parked = find(&|fate, _| fate.outbox == "PARKED", &tally);
    let told = |fates: &Fates, tally: &Tally, part: &str| {
        let faults = judge::faults(fates, tally, by_status);
        assert!(faults.iter().any(|fault| fault.contains(part)), "not found: {part}; but {faults:?}");
    };
    let lie = |id: &str, change: &dyn Fn(&mut Fate)| {
        let mut changed = fates.clone();
        change(changed.get_mut(id).expect("there"));
        changed
    };
    let mut rest = fates.clone();
    rest.remove(&sent);
    told(&rest, &tally, "there is no row of it");
    told(&lie(&error, &|fate| fate.inbox = Some("SENT".into())), &tally, "no whole good answer");
    told(&lie(&sent, &|fate| fate.inbox = Some("FAILED".into())), &tally, "did not refuse it");
    told(
        &lie(&failed, &|fate| (fate.outbox, fate.inbox) = ("PARKED".into(), None)),
        &tally,
        "the vendor has it",
    );
    told(&lie(&failed, &|fate| fate.inbox = None), &tally, "no legal end");
    told(&lie(&parked, &|fate| fate.outbox = "PUBLISHED".into()), &tally, "no legal end");
    let unsent = Call { outcome: "NOT_SENT".into(), answered: false };
    let change = |fate: &mut Fate| fate.calls.iter_mut().for_each(|call| *call = unsent.clone());
    told(&lie(&sent, &change), &tally, "seen more often");
    let open = Call { outcome: "UNKNOWN".into(), answered: false };
    told(&lie(&sent, &|fate| fate.calls.push(open.clone())), &tally, "more than one call");
    let more = tally.arrivals[&sent][0];
    tally.arrivals.get_mut(&sent).expect("there").push(Arrival { told: Told::Good, ..more });
    told(fates, &tally, "it arrived again");
}

/// The control: the same vendor under a client that tries again by the error. The same judge tells its repeats.
#[test]
fn control_a_client_that_retries_by_the_error_sends_twice_and_is_found_out() {
    const THREADS: u64 = 8;
    let calls = asked("ONCEWARD_CHAOS_CONTROL_CALLS", 1_600);
    let vendor = BreakingVendor::start(Security::Plain, u64::from(std::process::id()) << 32, false);
    let client = Client::new(&ClientSettings {
        timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(2),
        keep_alive: Duration::from_secs(1),
        idle_max: THREADS as usize,
        ca_file: None,
        proxy: None,
    })
    .expect("a client");
    let (url, fates) = (format!("http://{}/send", vendor.address), Mutex::new(Fates::new()));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, url, fates) = (&client, &url, &fates);
            scope.spawn(move || {
                for call in 0..calls / THREADS {
                    let id = format!("{thread}-{call}");
                    let mut state = "ERROR";
                    for _ in 0..3 {
                        // Whatever brought no answer is asked again: the mistake.
                        match client.post_once(url, &[("X-Reference", &id)], b"{\"text\":\"hello\"}").0 {
                            Exchange::Answered(answer) => {
                                state = if answer.status == 200 { "SENT" } else { "FAILED" };
                                break;
                            }
                            Exchange::NotSent { .. } | Exchange::Unknown { .. } => {}
                        }
                    }
                    let fate = Fate {
                        destination: "http-kept-status".into(),
                        outbox: "PUBLISHED".into(),
                        inbox: Some(state.into()),
                        given_up: false,
                        calls: Vec::new(),
                    };
                    fates.lock().expect("not poisoned").insert(id, fate);
                }
            });
        }
    });
    drop(client);
    let tally = vendor.finish();
    let faults = judge::faults(&fates.into_inner().expect("not poisoned"), &tally, by_status);
    let twice = faults.iter().filter(|fault| fault.contains("it arrived again")).count();
    println!("control: {calls} messages by a client that retries by the error: {twice} arrived twice");
    assert!(twice > 0, "the vendor broke nothing, or the judge sees nothing");
}
