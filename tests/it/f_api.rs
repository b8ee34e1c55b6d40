//! The local API over the socket: messages in, lists, one message, verbs, destinations; and the commands of a user who may
//! not read the inbox. The real agent, real files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::World;
use crate::support::local::is_root;

fn message(key: &str, payload: &str) -> String {
    format!(r#"{{"dedup_key":"{key}","kind":"TEST","recipient":"01012345678","payload":{payload}}}"#)
}

#[test]
fn messages_come_in_over_the_socket_as_by_the_command() {
    let world = World::listening("");
    let agent = world.agent();
    let (status, body) = world.call("POST", "/v1/messages", &message("k", r#"{"x":1}"#));
    let first: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status, 201, "{body}");
    let id = first["message_id"].as_str().expect("an id").to_owned();
    let (status, body) = world.call("POST", "/v1/messages", &message("k", r#"{"x":1}"#));
    assert!(status == 200 && body.contains(&id), "{status} {body}");
    let (status, body) = world.call("POST", "/v1/messages", &message("k", r#"{"x":2}"#));
    assert!(status == 409 && body.contains(&id), "{status} {body}");
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 1);
    for (bad, field) in [
        (r#"{"dedup_key":"","kind":"T","recipient":"010","payload":{}}"#, "dedup_key"),
        (r#"{"dedup_key":"q","kind":"T","recipient":"010"}"#, "payload"),
        (r#"{"dedup_key":"q","kind":"T","recipient":"010","payload":{},"colour":1}"#, "colour"),
        (r#"{"dedup_key":"q","kind":"T","recipient":"010","payload":{},"expires_at_ms":5}"#, "expires_at_ms"),
        ("not json", "JSON"),
        ("", "JSON"),
    ] {
        let (status, body) = world.call("POST", "/v1/messages", bad);
        assert!(status == 422 && body.contains(field), "{bad}: {status} {body}");
    }
    // Lines: each has its own status, the whole the worst; good ones are stored beside bad ones.
    let lines =
        [message("l1", "{}"), message("k", r#"{"x":1}"#), "{}".into(), message("l2", "{}")].join("\n");
    let (status, body) = world.call("POST", "/v1/messages", &lines);
    let said: Vec<u64> = body
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["status"].as_u64().expect("a status"))
        .collect();
    assert_eq!((status, said), (422, vec![201, 200, 422, 201]), "{body}");
    assert!(!body.contains("01012345678"), "{body}");
    world.wait("all sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 3);
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

#[test]
fn lists_and_stories_are_masked_and_the_agents_own_user_may_ask_for_more() {
    let world = World::listening("");
    for i in 0..5 {
        world.put(&format!("wait:{i}"), "biz", r#"{"type":"sms","content":{"sms":{"message":"geheim"}}}"#);
    }
    world.onceward(&["pause", "biz", "--reason", "so that they wait"]);
    let agent = world.agent();
    let sent = world.put_plain("sent");
    world.wait_inbox(&sent, "SENT");
    world.wait_outbox(&sent, "PUBLISHED");
    // Pages: no row twice, none left out.
    let (mut after, mut keys) = (Value::Null, Vec::new());
    loop {
        let more = after.as_i64().map(|after| format!("&after={after}")).unwrap_or_default();
        let page = world.get(&format!("/v1/messages?limit=2&dest=biz{more}"));
        for line in page["messages"].as_array().expect("a list") {
            keys.push(line["dedup_key"].as_str().expect("a key").to_owned());
            assert_eq!(line["recipient"], "010****01");
        }
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(keys, ["wait:0", "wait:1", "wait:2", "wait:3", "wait:4"]);
    let of = |query: &str| {
        let page = world.get(&format!("/v1/messages?{query}"));
        let keys: Vec<String> = page["messages"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|line| line["dedup_key"].as_str().expect("a key").to_owned())
            .collect();
        keys
    };
    assert_eq!(of("state=SENT"), ["sent"]);
    assert_eq!(of("state=PUBLISHED"), ["sent"]);
    assert_eq!(of("state=ERROR"), Vec::<String>::new());
    assert_eq!(of("q=wait%3A3"), ["wait:3"]);
    assert_eq!(of("q=sen"), ["sent"]);
    assert_eq!(of(&format!("q={sent}")), ["sent"]);
    assert_eq!(of("state=ALL&key=wait:1"), ["wait:1"]);
    assert_eq!(world.call("GET", "/v1/messages?state=LOST", "").0, 422);
    assert_eq!(world.call("GET", "/v1/messages?after=x", "").0, 422);
    assert_eq!(world.call("GET", "/v1/messages/nobody", "").0, 404);

    let story = world.get("/v1/messages/wait:0");
    assert_eq!(story["message"]["recipient"], "010****01");
    assert!(!story.to_string().contains("geheim"), "{story}");
    assert!(story["now"].as_str().is_some_and(|now| now.contains("so that they wait")), "{story}");
    let story = world.get("/v1/messages/wait:0?reveal=1");
    assert_eq!(story["message"]["recipient"], "01000000001", "the agent's own user");
    assert!(story["payload"].as_str().is_some_and(|payload| payload.contains("geheim")), "{story}");
    let story = world.get(&format!("/v1/messages/{sent}"));
    assert_eq!(
        (story["vendor"]["status"].as_str(), story["calls"][0]["outcome"].as_str()),
        (Some("SENT"), Some("ACCEPTED"))
    );

    let status = world.get("/v1/status");
    assert_eq!(
        (status["alive"].as_bool(), status["today"][0]["status"].as_str()),
        (Some(true), Some("SENT")),
        "{status}"
    );
    let all = world.get("/v1/destinations");
    assert_eq!(all["destinations"][1]["state"], "PAUSED", "{all}");
    assert_eq!(world.get("/v1/destinations/biz")["waiting"], 5);
    assert_eq!(world.call("GET", "/v1/destinations/nobody", "").0, 404);
    agent.stop();
}

#[test]
fn the_verbs_work_over_the_socket_with_their_audit() {
    let world = World::listening("");
    let soon = onceward::clock::wall_ms() + 3_600_000;
    let later = |key: &str| {
        let id = world.put_plain(key);
        world
            .outbox()
            .execute(
                "UPDATE outbox SET not_before_ms = ?1 WHERE message_id = ?2",
                rusqlite::params![soon, id],
            )
            .expect("due later");
        id
    };
    let (a, b) = (later("a"), later("b"));
    let lost = later("lost");
    world
        .inbox()
        .execute(
            "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms, finished_at_ms)
             VALUES ('gateway', ?1, 'f', 'SENT', 'a:1', 1, 2)",
            [&lost],
        )
        .expect("as a lost mark leaves it");
    let agent = world.agent();
    let act = |id: &str, verb: &str| {
        world.call("POST", &format!("/v1/messages/{id}/{verb}"), r#"{"note":"asked"}"#).0
    };
    assert_eq!(act(&a, "hold"), 200);
    assert_eq!(act(&a, "hold"), 200, "it stands so");
    assert_eq!(act("a", "try-now"), 409, "held; the key names it too");
    assert_eq!(act(&a, "release"), 200);
    let (status, said) = world.call("POST", &format!("/v1/messages/{a}/cancel"), r#"{"dry_run":true}"#);
    assert!(status == 200 && said.contains("\"moved\":false"), "{said}");
    assert_eq!(world.outbox_state(&a).0, "PENDING", "a dry run changes nothing");
    assert_eq!(act(&a, "try-now"), 200);
    world.wait_inbox(&a, "SENT");
    world.wait_outbox(&a, "PUBLISHED");
    assert_eq!(act(&a, "cancel"), 409);
    assert_eq!(act(&b, "cancel"), 200);
    assert_eq!((world.outbox_state(&b).0.as_str(), act("nobody", "hold")), ("FAILED", 404));
    assert_eq!(world.call("POST", &format!("/v1/messages/{b}/hold"), "[1]").0, 422);
    // The agent, who can look, says what it is.
    let (status, said) = world.call("POST", &format!("/v1/messages/{lost}/cancel"), "");
    assert!(status == 409 && said.contains("it is SENT"), "{status} {said}");
    let deeds: Vec<String> = world
        .outbox()
        .prepare("SELECT verb || ' ' || state_before || ' -> ' || state_after FROM audit WHERE note = 'asked' AND who LIKE 'uid %' AND verb <> 'TRY_NOW' ORDER BY id")
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    assert_eq!(deeds, ["HOLD PENDING -> HELD", "RELEASE HELD -> PENDING", "CANCEL PENDING -> FAILED"]);
    agent.stop();
}

#[test]
fn destinations_are_paused_resumed_and_probed_over_the_socket() {
    let world = World::listening("");
    let agent = world.agent();
    let post = |path: &str, body: &Value| world.call("POST", path, &body.to_string());
    assert_eq!(post("/v1/destinations/gateway/pause", &json!({})).0, 422, "no reason");
    assert_eq!(post("/v1/destinations/nobody/pause", &json!({"reason": "x"})).0, 404);
    let (status, said) = post("/v1/destinations/ALL/pause", &json!({"reason": "x"}));
    assert!(status == 200 && said.contains("gateway paused") && said.contains("biz paused"), "{said}");
    let id = world.put_plain("k");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(world.arrivals(&id), 0);
    let (status, said) = post("/v1/destinations/gateway/probe", &json!({}));
    assert!(status == 200 && said.contains("\"answers\":true") && said.contains("it is paused"), "{said}");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(world.arrivals(&id), 0, "a probe does not end a pause");
    assert_eq!(post("/v1/destinations/gateway/resume", &json!({})).0, 200);
    world.wait_inbox(&id, "SENT");
    agent.stop();
}

#[test]
fn a_member_of_the_group_sees_through_the_socket_what_the_inbox_holds() {
    if !is_root() {
        return;
    }
    let world = World::listening("");
    world.open_to_the_group();
    // Handed over before, held back by a 403, so that only the inbox could tell.
    let lost = world.put_plain("lost");
    let fresh = world.put_plain("fresh");
    world
        .outbox()
        .execute("UPDATE outbox SET not_before_ms = not_before_ms + 3600000, attempts = iif(message_id = ?1, 1, 0)", [&lost])
        .expect("as after a lost mark");
    world
        .inbox()
        .execute(
            "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms, finished_at_ms)
             VALUES ('gateway', ?1, 'f', 'SENT', 'a:1', 1, 2)",
            [&lost],
        )
        .expect("as a lost mark leaves it");
    // No agent: what only the inbox could tell is not claimed, what was never handed over is.
    let (code, said, error) = world.as_stranger(&["cancel", &lost]);
    assert!(code == 1 && said.contains("not cancelled: it was handed over before"), "{code} {said} {error}");
    let (code, said, error) = world.as_stranger(&["hold", &fresh]);
    assert_eq!((code, world.outbox_state(&fresh).0.as_str()), (0, "HELD"), "{said} {error}");
    let (code, _, error) = world.as_stranger(&["status"]);
    assert!(
        code == 0 && error.contains("is not shown") && error.contains("no agent answers"),
        "{code} {error}"
    );
    let (code, _, error) = world.as_stranger(&["pause", "gateway", "--reason", "x"]);
    assert_eq!(code, 77, "{error}");

    let agent = world.agent();
    world.open_socket();
    let sent = world.put_plain("sent");
    world.wait_inbox(&sent, "SENT");
    let (code, said, error) = world.as_stranger(&["cancel", &lost]);
    assert!(code == 1 && said.contains("it is SENT"), "{code} {said} {error}");
    let (code, shown, error) = world.as_stranger(&["status"]);
    assert!(
        code == 0 && shown.contains("running: pid") && shown.contains("fate at the vendor"),
        "{shown} {error}"
    );
    let (code, shown, error) = world.as_stranger(&["show", "sent"]);
    assert!(code == 0 && shown.contains("SENT since") && shown.contains("ACCEPTED"), "{shown} {error}");
    assert!(!shown.contains("01000000001") && shown.contains("010****01"), "{shown}");
    assert_eq!(world.as_stranger(&["show", "nobody"]).0, 66);
    let (code, shown, error) = world.as_stranger(&["show", "sent", "--json"]);
    let story: Value = serde_json::from_str(&shown).unwrap_or_else(|_| panic!("{shown} {error}"));
    assert_eq!((code, story["vendor"]["status"].as_str()), (0, Some("SENT")), "{shown}");
    // What only would be is not called done, and what stands so already is not counted as done.
    let (code, said, error) = world.as_stranger(&["cancel", &fresh, "--dry-run"]);
    assert!(code == 0 && said.contains("would be cancelled") && !said.contains("now"), "{said} {error}");
    assert!(said.contains("1 would be cancelled, 0 not (dry run: nothing was changed)"), "{said}");
    assert_eq!(world.outbox_state(&fresh).0, "HELD");
    let (code, said, error) = world.as_stranger(&["hold", &fresh]);
    assert!(code == 0 && said.contains("0 held, 1 already, 0 not"), "{said} {error}");
    let (code, shown, error) = world.as_stranger(&["queue", "--state", "published"]);
    assert!(code == 0 && shown.contains(&sent) && shown.contains("SENT"), "{shown} {error}");
    let (code, shown, error) = world.as_stranger(&["dest"]);
    assert!(code == 0 && shown.contains("OPEN") && shown.contains("SENT 1"), "{shown} {error}");
    let (code, said, error) = world.as_stranger(&["pause", "gateway", "--reason", "by a member"]);
    assert_eq!((code, said.as_str()), (0, "gateway paused\n"), "{error}");
    let who: String = world
        .inbox()
        .query_row("SELECT who FROM audit WHERE verb = 'PAUSE'", [], |row| row.get(0))
        .expect("audited");
    assert!(who.starts_with("uid 4242"), "{who}");
    agent.stop();
}

#[test]
fn over_the_loopback_address_every_call_needs_the_token_and_nothing_is_revealed() {
    const TOKEN: &str = "api-token-0123456789";
    let world = World::listening("");
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let token = world.dir.path().join("token");
    std::fs::write(&token, TOKEN).expect("written");
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("mode");
    let settings = std::fs::read_to_string(&world.config).expect("settings");
    std::fs::write(&world.config, format!("{settings}http = \"127.0.0.1:{port}\"\ntoken = \"file:token\"\n"))
        .expect("written");
    world.put("k", "gateway", r#"{"secret":"geheim"}"#);
    let agent = world.agent();
    let call = |method: &str, path: &str, token: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\n{token}Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status: u16 = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, answer)
    };
    for (method, path) in [
        ("GET", "/v1/status"),
        ("GET", "/v1/messages"),
        ("GET", "/v1/messages/k"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/messages/k/hold"),
        ("POST", "/v1/messages/k/cancel"),
        ("GET", "/v1/destinations"),
        ("GET", "/v1/destinations/gateway"),
        ("POST", "/v1/destinations/gateway/pause"),
        ("POST", "/v1/destinations/gateway/probe"),
    ] {
        assert_eq!(call(method, path, "").0, 401, "{path}");
    }
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    let (status, answer) = call("GET", "/v1/messages/k?reveal=1", &right);
    assert!(status == 200 && !answer.contains("geheim") && answer.contains("010****01"), "{answer}");
    let (status, answer) = call("POST", "/v1/destinations/gateway/resume", &right);
    assert!(status == 200 && answer.contains("is not paused"), "{answer}");
    agent.stop();
}
