//! Whole files: the documented example, five mistakes at once, and one mistake at a time.

use super::super::secret::SecretReference;
use super::super::{Reports, Route, StatusRange, VendorSettings};
use super::*;

mod files;

/// The example of the interface, as documented.
const EXAMPLE: &str = include_str!("example.toml");

/// Answers every reference with a text that fits every field.
struct Stub;

impl SecretSource for Stub {
    fn read(&self, reference: &SecretReference) -> Result<Option<String>, String> {
        Ok(Some(match reference {
            SecretReference::Credential(name) if name == "slack" => "https://hooks.example/T0/B0".to_owned(),
            _ => "a-stub-secret-of-some-length\n".to_owned(),
        }))
    }
}

fn from_text(text: &str) -> Result<Settings, SettingsError> {
    Settings::from_text(text, Path::new("/etc/onceward/onceward.toml"), &Stub)
}

/// Problems as `LINE: [section].key: what`.
fn problems(text: &str) -> Vec<String> {
    match from_text(text) {
        Ok(_) => Vec::new(),
        Err(error) => error
            .to_string()
            .lines()
            .filter(|line| !line.contains(" mistakes in "))
            .map(|line| line.replace("/etc/onceward/onceward.toml:", ""))
            .collect(),
    }
}

/// One destination of each type, enough to be sound.
const GATEWAY: &str = "[[destination]]\nname = 'gateway'\ntype = 'http'\nurl = 'https://gw.example/send'\n";
const BIZPPURIO: &str =
    "[[destination]]\nname = 'biz'\ntype = 'bizppurio'\naccount = 'a'\npassword = 'env:P'\nfrom = '02'\n";

fn http(settings: &Settings, index: usize) -> &crate::config::HttpSettings {
    match &settings.destinations[index].vendor {
        VendorSettings::Http(http) => http,
        VendorSettings::BizPpurio(_) => panic!("destination {index} is bizppurio"),
    }
}

fn bizppurio(settings: &Settings, index: usize) -> &crate::config::BizPpurioSettings {
    match &settings.destinations[index].vendor {
        VendorSettings::BizPpurio(bizppurio) => bizppurio,
        VendorSettings::Http(_) => panic!("destination {index} is http"),
    }
}

/// The defaults of the interface, except for what the file says about destinations and places.
fn assert_documented_defaults(settings: &Settings) {
    let time = |hour, minute| jiff::civil::time(hour, minute, 0, 0);
    assert_eq!(settings.agent.environment, "production");
    assert!(settings.agent.allowed_recipients.is_empty());
    assert_eq!(settings.agent.timezone.iana_name(), Some("Asia/Seoul"));
    assert_eq!(settings.relay.batch, 50);
    assert_eq!(settings.relay.lease, Duration::from_secs(900));
    assert_eq!(settings.relay.poll, Duration::from_secs(2));
    assert_eq!(settings.relay.channel, 1024);
    assert_eq!(settings.retry.quick, Repeat { times: 2, every: Duration::from_secs(1) });
    assert_eq!(settings.retry.later, Repeat { times: 3, every: Duration::from_secs(600) });
    assert_eq!(settings.retry.handoff, [60, 120, 240, 480, 960, 1800].map(Duration::from_secs));
    assert_eq!(settings.retry.alert_at_attempt, 5);
    let window = WindowSettings { opens: time(8, 0), closes: time(20, 50), relay_until: time(20, 40) };
    assert_eq!(settings.advertising, window);
    assert!(settings.alert.command.is_empty());
    assert_eq!(settings.alert.stale_sending, Duration::from_secs(600));
    assert_eq!(settings.alert.backlog_age, Duration::from_secs(1800));
    assert_eq!(settings.alert.interval, Duration::from_secs(900));
    assert_eq!(settings.alert.command_timeout, Duration::from_secs(30));
    assert_eq!(settings.alert.disk_free, 256 << 20);
    assert_eq!(settings.retention.bodies, Duration::from_secs(30 * 86_400));
    assert_eq!(settings.retention.keys, Duration::from_secs(400 * 86_400));
    for destination in &settings.destinations {
        assert_eq!(destination.timeout, Duration::from_secs(15));
        assert_eq!(destination.connect_timeout, Duration::from_secs(5));
        assert_eq!(destination.threads, 5);
        assert_eq!(destination.keep_alive, Duration::from_secs(1));
        assert_eq!((&destination.ca_file, &destination.proxy), (&None, &None));
    }
}

fn assert_http_defaults(http: &crate::config::HttpSettings) {
    let one = |status| StatusRange { first: status, last: status };
    assert_eq!((http.reference_header.as_str(), http.reference_bytes_max), ("X-Reference", 100));
    assert_eq!((http.body.as_ref(), http.content_type.as_str()), (None, "application/json"));
    assert_eq!(http.accepted.status, [StatusRange { first: 200, last: 299 }]);
    assert_eq!(http.rejected.status, [one(400), one(404), one(422)]);
    assert_eq!(http.not_sent.status, [one(401), one(403), one(429)]);
    assert!([&http.accepted, &http.rejected, &http.not_sent].iter().all(|rule| rule.json.is_none()));
    assert_eq!((http.vendor_ref.as_ref(), http.idempotency_header.as_str()), (None, ""));
}

#[test]
fn the_documented_example_is_read_as_documented() {
    let settings = from_text(EXAMPLE).unwrap_or_else(|error| panic!("{error}"));
    assert_documented_defaults(&settings);
    assert_eq!(settings.agent.state_dir, Path::new("/var/lib/onceward"));
    assert_eq!(settings.listen.socket, Path::new("/run/onceward/onceward.sock"));
    assert_eq!(settings.listen.http, Some("127.0.0.1:7780".parse().unwrap()));
    assert_eq!(settings.listen.token.as_ref().unwrap().reveal(), "a-stub-secret-of-some-length");
    assert_eq!(settings.alert.webhook.as_ref().unwrap().reveal(), "https://hooks.example/T0/B0");
    assert_eq!(settings.routes, [Route { kind: "GRADE_*".to_owned(), destination: "bizppurio".to_owned() }]);

    assert_eq!(settings.destinations.len(), 2);
    assert_eq!(settings.destinations[0].name, "bizppurio");
    assert_eq!(settings.destinations[0].url, "https://api.bizppurio.com");
    assert_eq!(settings.destinations[0].rate_per_s, Some(20.0));
    let vendor = bizppurio(&settings, 0);
    assert_eq!((vendor.account.as_str(), vendor.from.as_str()), ("branch01", "0212345678"));
    assert_eq!(vendor.password.reveal(), "a-stub-secret-of-some-length");
    assert!(matches!(vendor.reports, Reports::Poll(every) if every == Duration::from_secs(30)));
    assert_eq!(settings.destinations[1].url, "https://gw.example/send");
    assert_eq!(settings.destinations[1].rate_per_s, None);
    assert_http_defaults(http(&settings, 1));
    let headers = &http(&settings, 1).headers;
    assert_eq!((headers.len(), headers[0].0.as_str()), (1, "Authorization"));
    assert!(!format!("{settings:?}").contains("stub-secret"), "a secret in Debug");
}

#[test]
fn the_least_file_has_every_default() {
    let settings = from_text(&format!("{GATEWAY}{BIZPPURIO}")).unwrap_or_else(|error| panic!("{error}"));
    assert_documented_defaults(&settings);
    assert_http_defaults(http(&settings, 0));
    assert_eq!(settings.destinations[1].url, "https://api.bizppurio.com");
    assert_eq!(settings.destinations[1].rate_per_s, Some(20.0));
    assert!(
        matches!(bizppurio(&settings, 1).reports, Reports::Poll(every) if every == Duration::from_secs(30))
    );
    assert_eq!((settings.listen.http, settings.routes.len()), (None, 0));
    assert!(settings.listen.token.is_none() && settings.alert.webhook.is_none());
}

#[test]
fn five_mistakes_are_five_problems_with_their_lines() {
    let text = "\
[agent]
timezone = \"Asia/Seoull\"

[relay]
bach = 50
lease = 15

[[destination]]
name = \"gateway\"
type = \"http\"
url = \"http://gw.example/send\"

[[route]]
kind = \"GRADE_*\"
destination = \"gatewy\"
";
    assert_eq!(
        problems(text),
        [
            "2: [agent].timezone: is the text \"Asia/Seoull\", which is no known zone, expected an IANA zone name \
             like \"Asia/Seoul\" (did you mean Asia/Seoul?)",
            "5: [relay].bach: unknown key (did you mean batch?)",
            "6: [relay].lease: is the number 15, expected a duration from 10s to 1d, as text with a unit (\"500ms\", \
             \"10s\", \"15m\", \"2h\", \"400d\")",
            "11: [[destination]].url: is plain http to gw.example, which anybody on the way can read and change; use \
             https, or set insecure_http = true in this destination",
            "15: [[route]].destination: is the text \"gatewy\", expected one of gateway (did you mean gateway?)",
        ]
    );
}

#[test]
fn each_mistake_is_one_problem_on_its_line() {
    let ends = "[relay]\n"; // puts nothing into the destination before it
    for (text, expected) in [
        // Files and sections.
        (String::new(), "1: [[destination]]: there is none"),
        (format!("batch = 5\n{GATEWAY}"), "1: batch: stands outside of any section"),
        (format!("{GATEWAY}[agnet]\nstate_dir = '/x'"), "5: [agnet]: unknown section (did you mean agent?)"),
        (format!("{GATEWAY}[[rout]]\nkind = '*'"), "5: [[rout]]: unknown section (did you mean route?)"),
        (
            format!("{GATEWAY}[class.ADVERT]\nwindow = []"),
            "5: [class].ADVERT: unknown key, expected one of ADVERTISING",
        ),
        ("[destination]\nname = 'x'".to_owned(), "1: [[destination]]: is one table with single brackets"),
        (format!("{GATEWAY}[relay\nbatch = 5"), "5: is not TOML: "),
        (format!("{GATEWAY}[relay]\nbatch = 5\nbatch = 6"), "7: is not TOML: duplicate key"),
        (format!("agent = 5\n{GATEWAY}"), "1: [agent]: is the number 5, expected a section [agent]"),
        // Ranges and types.
        (
            format!("{GATEWAY}[relay]\nbatch = 0"),
            "6: [relay].batch: is the number 0, expected a whole number from 1 to 1000",
        ),
        (
            format!("{GATEWAY}[relay]\nbatch = '50'"),
            "6: [relay].batch: is the text \"50\", expected a whole number",
        ),
        (format!("{GATEWAY}[relay]\nchannel = 65537"), "6: [relay].channel: "),
        (
            format!("{GATEWAY}[relay]\npoll = '2m'"),
            "6: [relay].poll: is too long (2m), expected a duration from 100ms to 1m",
        ),
        (format!("{GATEWAY}[worker]\nthreads = 257"), "6: [worker].threads: "),
        (format!("{GATEWAY}[retry]\nquick = {{ times = 1001 }}"), "6: [retry].quick.times: "),
        (
            format!("{GATEWAY}[retry]\nlater = {{ time = 3 }}"),
            "6: [retry].later.time: unknown key (did you mean times?)",
        ),
        (format!("{GATEWAY}[retry]\nlater = 3"), "6: [retry].later: is the number 3"),
        (format!("{GATEWAY}[retry]\nhandoff = []"), "6: [retry].handoff: has 0 entries"),
        (
            format!("{GATEWAY}[retry]\nhandoff = ['1m', '-1m']"),
            "6: [retry].handoff: entry 2 is the text \"-1m\"",
        ),
        (
            format!("{GATEWAY}[agent]\nenvironment = 'Production'"),
            "6: [agent].environment: is the text \"Production\"",
        ),
        (format!("{GATEWAY}[agent]\nallowed_recipients = [01012345678]"), "6: is not TOML: "),
        (
            format!("{GATEWAY}[agent]\nallowed_recipients = [1012345678]"),
            "6: [agent].allowed_recipients: entry 1 is a number, expected",
        ),
        (
            format!("{GATEWAY}[alert]\ncommand = ['notify']"),
            "6: [alert].command: has a program without its full path",
        ),
        (
            format!("{GATEWAY}[alert]\ndisk_free = '64MB'"),
            "6: [alert].disk_free: is the text \"64MB\", expected a size",
        ),
        (format!("{GATEWAY}[alert]\ninterval = '1ms'"), "6: [alert].interval: is too short"),
        (
            format!("{GATEWAY}[alert]\nwebhook = 'env:NOT_A_URL'"),
            "6: [alert].webhook: env:NOT_A_URL has no scheme",
        ),
        (
            format!("{GATEWAY}[listen]\nhttp = '0.0.0.0:80'\ntoken = 'env:T'"),
            "6: [listen].http: is the text \"0.0.0.0:80\", which other machines reach",
        ),
        (format!("{GATEWAY}[listen]\nhttp = '127.0.0.1:80'"), "6: [listen].token: is missing"),
        (format!("{GATEWAY}[listen]\nsocket = '/{}'", "x".repeat(107)), "6: [listen].socket: has 108 bytes"),
        // Relations.
        (
            format!("{GATEWAY}timeout = '1m'\n{ends}lease = '60s'"),
            "7: [relay].lease: is 1m, expected longer than the timeout of every destination (1m for gateway)",
        ),
        (
            format!("{GATEWAY}timeout = '1m'\n[alert]\nstale_sending = '30s'"),
            "7: [alert].stale_sending: is 30s, expected longer",
        ),
        (
            format!("{GATEWAY}connect_timeout = '16s'"),
            "5: [[destination]].connect_timeout: is longer than timeout (15s)",
        ),
        (
            format!("{GATEWAY}[class.ADVERTISING]\nrelay_until = '20:51'"),
            "6: [class.ADVERTISING].relay_until: is 20:51, expected inside the window",
        ),
        (
            format!("{GATEWAY}[class.ADVERTISING]\nwindow = ['21:00', '21:05']"),
            "5: [class.ADVERTISING].relay_until: is 20:55",
        ),
        (
            format!("{GATEWAY}[class.ADVERTISING]\nwindow = ['08:00', '08:00']"),
            "6: [class.ADVERTISING].window: opens and closes at the same time",
        ),
        (
            format!("{GATEWAY}[class.ADVERTISING]\nwindow = ['22:00', '06:00']\nrelay_until = '06:01'"),
            "7: [class.ADVERTISING].relay_until: is 06:01, expected inside the window",
        ),
        (
            format!("{GATEWAY}[class.ADVERTISING]\nwindow = ['08:00']"),
            "6: [class.ADVERTISING].window: has 1 entries",
        ),
        (
            format!("{GATEWAY}[retention]\nbodies = '401d'"),
            "6: [retention].bodies: is 401d, expected at most keys (400d)",
        ),
        (
            format!("{GATEWAY}{GATEWAY}"),
            "6: [[destination]].name: \"gateway\" is the name of two destinations",
        ),
        (
            format!(
                "{GATEWAY}[[route]]\nkind = '*'\ndestination = 'gateway'\n[[route]]\nkind = 'A'\ndestination = 'gateway'"
            ),
            "9: [[route]].kind: is never reached",
        ),
        (format!("{GATEWAY}[[route]]\nkind = 'A'"), "5: [[route]].destination: is missing"),
        // Destinations.
        (GATEWAY.replace("'gateway'", "'Gate way'"), "2: [[destination]].name: "),
        (
            GATEWAY.replace("'http'", "'htpp'"),
            "3: [[destination]].type: is the text \"htpp\", expected \"bizppurio\" or \"http\" (did you mean http?)",
        ),
        (GATEWAY.replace("type = 'http'\n", ""), "1: [[destination]].type: is missing"),
        (GATEWAY.replace("url = 'https://gw.example/send'\n", ""), "1: [[destination]].url: is missing"),
        (
            GATEWAY.replace("https:", "ftp:"),
            "4: [[destination]].url: has a scheme that is neither http nor https",
        ),
        (format!("{GATEWAY}timeout = '999ms'"), "5: [[destination]].timeout: is too short"),
        (format!("{GATEWAY}timeout = '301s'"), "5: [[destination]].timeout: is too long"),
        (format!("{GATEWAY}threads = 0"), "5: [[destination]].threads: "),
        (format!("{GATEWAY}rate = 20"), "5: [[destination]].rate: is the number 20, expected a rate"),
        (format!("{GATEWAY}acount = 'x'"), "5: [[destination]].acount: unknown key"),
        (
            format!("{GATEWAY}account = 'x'"),
            "5: [[destination]].account: belongs to destinations of type \"bizppurio\"",
        ),
        (
            format!("{GATEWAY}headers = {{ 'X Y' = 'z' }}"),
            "5: [[destination]].headers.X Y: is no header name",
        ),
        (
            format!("{GATEWAY}headers = {{ Authorization = 'Bearer hunter2' }}"),
            "5: [[destination]].headers.Authorization: is text in the file",
        ),
        (
            format!("{GATEWAY}headers = {{ x-reference = 'a' }}"),
            "5: [[destination]].headers.x-reference: carries the message id already",
        ),
        (
            format!("{GATEWAY}headers = {{ X-A = 'a', x-a = 'b' }}"),
            "5: [[destination]].headers.x-a: stands there twice",
        ),
        (format!("{GATEWAY}idempotency_header = 'x-reference'"), "5: [[destination]].idempotency_header: "),
        (
            format!("{GATEWAY}reference_header = 'X:Y'"),
            "5: [[destination]].reference_header: is no header name",
        ),
        (format!("{GATEWAY}reference_bytes_max = 29"), "5: [[destination]].reference_bytes_max: "),
        (format!("{GATEWAY}body = 'payloda'"), "5: [[destination]].body: is a text without any field"),
        (format!("{GATEWAY}body = '{{{{ recipient'"), "5: [[destination]].body: is no valid template"),
        (format!("{GATEWAY}content_type = 'json'"), "5: [[destination]].content_type: "),
        (
            format!("{GATEWAY}not_sent = {{ status = ['5xx'] }}"),
            "5: [[destination]].not_sent: status 500 alone does not prove",
        ),
        (format!("{GATEWAY}vendor_ref = 'id'"), "5: [[destination]].vendor_ref: "),
        (
            format!("{GATEWAY}proxy = 'http://me:hunter2@proxy'"),
            "5: [[destination]].proxy: has a user name or password",
        ),
        (
            format!("{BIZPPURIO}keep_alive = '5s'"),
            "7: [[destination]].keep_alive: is too long (5s), expected at most 4s",
        ),
        (format!("{BIZPPURIO}reports = {{}}"), "7: [[destination]].reports: is empty"),
        (
            format!("{BIZPPURIO}reports = {{ poll = '30s', webhook_secret = 'env:H' }}"),
            "7: [[destination]].reports: has both",
        ),
        (format!("{BIZPPURIO}reports = 'on'"), "7: [[destination]].reports: "),
        (
            format!("{BIZPPURIO}headers = {{ A = 'b' }}"),
            "7: [[destination]].headers: belongs to destinations of type \"http\"",
        ),
        (BIZPPURIO.replace("'a'", "'a:b'"), "4: [[destination]].account: "),
        (BIZPPURIO.replace("'02'", "'02-123'"), "6: [[destination]].from: "),
        (
            BIZPPURIO.replace("'env:P'", "'hunter2'"),
            "5: [[destination]].password: is text in the file (not shown here)",
        ),
        (BIZPPURIO.replace("'env:P'", "hunter2"), "5: is not TOML: "),
    ] {
        let found = problems(&text);
        assert_eq!(found.len(), 1, "{text}\n{found:#?}");
        assert!(found[0].starts_with(expected), "{text}\n{}\n{expected}", found[0]);
        assert!(!found[0].contains("hunter2"), "a secret is echoed: {}", found[0]);
    }
}

#[test]
fn what_is_allowed_is_allowed() {
    for text in [
        GATEWAY.replace("https://gw.example/", "http://127.0.0.1:7790/"),
        GATEWAY.replace("https://", "http://") + "insecure_http = true",
        format!(
            "{GATEWAY}rate = ''\nproxy = ''\nca_file = ''\nvendor_ref = ''\nreference_header = ''\nbody = '{{{{ payload }}}}'"
        ),
        format!("{GATEWAY}headers = {{ X-Branch = 'seoul' }}\nkeep_alive = '5s'"),
        format!("{BIZPPURIO}reports = 'off'\nkeep_alive = '4s'"),
        format!("{BIZPPURIO}reports = {{ webhook_secret = 'env:H' }}"),
        format!("{GATEWAY}[agent]\nenvironment = 'staging'\nallowed_recipients = ['01012345678']"),
        format!("{GATEWAY}[class.ADVERTISING]\nrelay_until = '20:50'"),
        format!("{GATEWAY}[listen]\nhttp = '[::1]:7780'\ntoken = 'env:T'"),
    ] {
        assert_eq!(problems(&text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn a_destination_that_is_wrong_makes_no_second_problem_elsewhere() {
    let text = format!("{}[[route]]\nkind = '*'\ndestination = 'gateway'", GATEWAY.replace("https:", "ftp:"));
    assert_eq!(problems(&text).len(), 1, "{:#?}", problems(&text));
    let text = format!("{GATEWAY}timeout = '10h'\n[relay]\nlease = '10s'");
    assert_eq!(problems(&text).len(), 1, "{:#?}", problems(&text));
}

#[test]
fn threads_of_a_destination_come_from_the_worker_section_unless_it_says_otherwise() {
    let settings = from_text(&format!(
        "{GATEWAY}[[destination]]\nname = 'b'\ntype = 'http'\nurl = 'https://b'\nthreads = 2\n[worker]\nthreads = 9"
    ));
    let settings = settings.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        settings.destinations.iter().map(|destination| destination.threads).collect::<Vec<_>>(),
        [9, 2]
    );
}
