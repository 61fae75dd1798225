//! A headless Chromium that a test controls.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::elements::Element;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep;
use url::{ParseError, Url};

/// Several times what Chromium takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The machine is small: browsers come one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Chromium with one tab; it ends with its test.
pub(crate) struct Browser {
    pub(crate) client: Client,
    _driver: Driver,
    _turn: MutexGuard<'static, ()>,
}

impl Browser {
    /// A window of this size, whatever the screen.
    pub(crate) async fn start(width: u32, height: u32) -> Self {
        let turn = ONE_AT_A_TIME.lock().await;
        let driver = Driver::start();
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            // Containers have little shared memory.
            "--disable-dev-shm-usage",
            // What lies around on this machine, and what a first start asks of the world.
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
        ];
        let capabilities = json!({
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else {
            unreachable!("it is written above");
        };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{}", driver.port))
            .await
            .expect("Chromium starts");
        let browser = Self {
            client,
            _driver: driver,
            _turn: turn,
        };
        browser.resize(width, height).await;
        browser
    }

    /// To what a page sees of its window, which may be narrower than a browser's can be.
    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics)
            .await;
    }

    /// Has the reader prefer something: `("prefers-color-scheme", "dark")`.
    pub(crate) async fn prefer(&self, feature: &str, value: &str) {
        let features = json!({ "features": [{ "name": feature, "value": value }] });
        self.devtools("Emulation.setEmulatedMedia", &features).await;
    }

    async fn devtools(&self, command: &str, parameters: &Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.extra("goog/cdp/execute", body).await
    }

    /// The role and the accessible name of each control, sorted.
    pub(crate) async fn controls(&self) -> Vec<(String, String)> {
        const ROLES: [&str; 5] = ["button", "combobox", "link", "spinbutton", "textbox"];
        let tree = self
            .devtools("Accessibility.getFullAXTree", &json!({}))
            .await;
        let nodes = tree["nodes"].as_array().expect("a list").iter();
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        let named = nodes.map(|node| (text(&node["role"]), text(&node["name"])));
        let mut controls: Vec<_> = named
            .filter(|(role, _)| ROLES.contains(&role.as_str()))
            .collect();
        controls.sort_unstable();
        controls
    }

    /// All that the page's console shows since it was asked last: errors, warnings and failed requests.
    pub(crate) async fn console(&self) -> Vec<String> {
        let entries = self.extra("se/log", json!({ "type": "browser" })).await;
        let entries = entries.as_array().expect("a list").iter();
        entries.map(Value::to_string).collect()
    }

    /// A command that browsers of one kind have.
    async fn extra(&self, path: &'static str, body: Value) -> Value {
        let command = Extra { path, body };
        self.client.issue_cmd(command).await.expect(path)
    }

    pub(crate) async fn open(&self, url: &str) {
        self.client.goto(url).await.expect(url);
    }

    pub(crate) async fn find(&self, css: &str) -> Element {
        self.client.find(Locator::Css(css)).await.expect(css)
    }

    pub(crate) async fn click(&self, css: &str) {
        self.find(css).await.click().await.expect(css);
    }

    /// Types a value in place of that of a field.
    pub(crate) async fn put(&self, css: &str, value: &str) {
        let field = self.find(css).await;
        field.clear().await.expect(css);
        field.send_keys(value).await.expect(css);
    }

    /// What an element shows.
    pub(crate) async fn text(&self, css: &str) -> String {
        self.find(css).await.text().await.expect(css)
    }

    /// The number that an element shows, with commas between thousands.
    pub(crate) async fn number(&self, css: &str) -> u64 {
        let text = self.text(css).await;
        text.replace(',', "").parse().expect(&text)
    }

    pub(crate) async fn run(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.expect(script)
    }

    /// Waits until an element's text is as it should be, and returns it.
    pub(crate) async fn until(&self, css: &str, is_there: impl Fn(&str) -> bool) -> String {
        let patience = Instant::now() + PATIENCE;
        loop {
            let text = self.text(css).await;
            if is_there(&text) {
                return text;
            }
            assert!(Instant::now() < patience, "{css}: {text}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Closes the browser. A test that fails leaves that to its driver.
    pub(crate) async fn end(self) {
        self.client.close().await.expect("it closes");
    }
}

#[derive(Debug)]
struct Extra {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Extra {
    fn endpoint(&self, base_url: &Url, session_id: Option<&str>) -> Result<Url, ParseError> {
        let session = session_id.unwrap_or_default();
        base_url.join(&format!("session/{session}/{}", self.path))
    }

    fn method_and_body(&self, _request_url: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

/// A chromedriver of one test, and the browser that it starts.
struct Driver {
    process: Child,
    port: u16,
}

impl Driver {
    /// Starts chromedriver, and another one if it ends before it prints its port: seen twice in 50 starts,
    /// probably because the free port that it chose was taken meanwhile.
    fn start() -> Self {
        let started = (0..5).find_map(|_| Self::try_start());
        started.expect("chromedriver prints its port")
    }

    fn try_start() -> Option<Self> {
        let mut process = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is installed");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut lines = output.lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        if let Some(port) = port {
            return Some(Self { process, port });
        }
        // Its output has ended, and so has the process.
        let _ = process.wait();
        None
    }

    /// Asks it to end, and its browsers with it.
    fn shut_down(&self) -> std::io::Result<()> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        let host = format!("127.0.0.1:{}", self.port);
        write!(
            connection,
            "GET /shutdown HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        )?;
        connection.read_to_end(&mut Vec::new())?;
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.shut_down().is_err() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
