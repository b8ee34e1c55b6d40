//! F16.

use crate::support::World;

#[test]
fn f16_sigterm_lets_calls_end_and_gives_back_the_rest() {
    let world = World::new();
    world.faults(&["delay=300ms"]);
    world.put_many("k", 200);
    let mut agent = world.agent();
    world.wait("calls are under way", |world| world.sandbox.ledger().totals().arrived >= 6);
    agent.term();
    let status = agent.wait_end();
    assert!(status.success(), "{status}\n{}", agent.log());
    let totals = world.sandbox.ledger().totals();
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'"), 0);
    assert_eq!(
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'"),
        totals.arrived as i64,
        "each call has its record"
    );
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHING'"), 0);
    assert_eq!(
        world.count("SELECT count(*) FROM outbox WHERE status = 'PENDING'"),
        200 - totals.arrived as i64
    );
    world.faults(&[]);
    let agent = world.agent();
    world.wait("the rest", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 200);
    let totals = world.sandbox.ledger().totals();
    assert_eq!((totals.arrived, totals.repeated), (200, 0));
    agent.stop();
}

/// Ticks of CPU that a process has used.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
}

#[test]
fn an_idle_agent_uses_no_processor_whether_it_has_hooks_or_not() {
    for alert in ["", "[alert]\ncommand = [\"/bin/true\"]\n"] {
        let world = World::with(alert, "");
        let agent = world.agent();
        std::thread::sleep(std::time::Duration::from_secs(1));
        let before = ticks(agent.pid());
        std::thread::sleep(std::time::Duration::from_secs(3));
        let used = ticks(agent.pid()) - before;
        // A room that spins uses some 300 ticks of 10 ms in this time, or what the others leave it.
        assert!(used <= 15, "{used} ticks in 3 s, {alert:?}");
        agent.stop();
    }
}
