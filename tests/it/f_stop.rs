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
