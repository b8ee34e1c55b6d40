//! Several reports in one post of the webhook, of which some cannot be read (F29).

use serde_json::{Value, json};

use crate::f_reports::{Listening, posted};

#[test]
fn what_can_be_read_of_a_list_is_taken_in_and_the_rest_is_kept_counted_and_told_once() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,accepted=yes,report=no"]);
    let agent = it.world.agent();
    let (a, b, c) = (it.error("a"), it.error("b"), it.error("c"));
    // One without a code about `c`, and one that is no report at all.
    let bad = json!({"MSGID": "m3", "PHONE": "01098765432", "REFKEY": c});
    let list = Value::Array(vec![
        posted("m1", "SMS", "4100", &a, 1_700_000_000),
        bad.clone(),
        json!("what?"),
        posted("m2", "SMS", "4410", &b, 1_700_000_000),
    ]);
    for round in 1..=3 {
        it.report(&list); // 200: the vendor does not say it again for ever
        assert_eq!((it.row(&a).0.as_str(), it.row(&a).1.as_str()), ("SENT", "DELIVERED"));
        assert_eq!((it.row(&b).0.as_str(), it.row(&b).1.as_str()), ("FAILED", "UNDELIVERED"));
        assert_eq!(it.row(&c).0, "ERROR", "what cannot be read settles nothing");
        assert_eq!(it.world.count("SELECT count(*) FROM report"), 4);
        let kept = format!(
            "SELECT count(*) FROM v_report WHERE code = 'unreadable' AND verdict = 'UNLISTED' AND copies = {round}"
        );
        assert_eq!(it.world.count(&kept), 2);
        it.world.wait("told once", |world| world.alerts("REPORT_UNCLEAR") == 2);
    }
    let of_c = format!("SELECT count(*) FROM v_report WHERE message_id = '{c}' AND code = 'unreadable'");
    assert_eq!(it.world.count(&of_c), 1);
    let (_, shown, _) = it.world.onceward(&["show", "c"]);
    assert!(shown.contains("cannot be read"), "{shown}");
    let said: String = it
        .world
        .inbox()
        .query_row("SELECT last_text FROM alert WHERE cause = 'REPORT_UNCLEAR'", [], |row| row.get(0))
        .expect("reads");
    assert!(said.contains("2 of 4 reports") && said.contains("without RESULT"), "{said}");
    assert!(!said.contains("98765432") && !agent.log().contains("98765432"), "no number");
    // Its right form comes later and settles it.
    it.report(&json!([bad, posted("m3", "SMS", "4100", &c, 1_700_000_001)]));
    assert_eq!(it.row(&c).0, "SENT");
    // Nothing to be read: the vendor says it again.
    assert_eq!(it.post(&it.path(), &json!([{"MSGID": "m9"}, 1])), 400);
    assert_eq!(it.world.count("SELECT count(*) FROM report"), 5);
    agent.stop();
}
