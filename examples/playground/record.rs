//! Records a burst across an edge, and writes the page with it as one file that needs no server.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Uri;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use http_body_util::channel::Channel;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::time::interval;

use crate::page::{self, SCRIPT};
use crate::report::micros;
use crate::settings::{Query, Settings};
use crate::traffic::Traffic;
use crate::{edge, look};

/// What the form of the page has before anybody changes it.
const FORM: &str = "/?algorithm=sliding-log&quotas=20/5s&key=ada&cost=1";

/// How often the counts are read.
const LOOK: Duration = Duration::from_millis(200);

/// What is seen before the first burst, and after the second one.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(4);

/// Only what is in the file, and no server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:";

pub(crate) async fn write(path: &Path, traffic: &Traffic) -> Result<(), Box<dyn Error>> {
    let settings = Settings::of(&Query::of(&Uri::from_static(FORM)));
    let settings = settings.map_err(|invalid| invalid.to_json().to_string())?;
    println!("Recording a burst for ten seconds.");
    let recording = record(traffic, &settings).await?;
    std::fs::write(path, page(&recording.to_json()))?;
    println!("Wrote {}. Open it in a browser.", path.display());
    Ok(())
}

/// The reports of a burst. Their times are those of the program.
#[derive(Default)]
struct Recording {
    /// When the edge came.
    edge: u64,
    /// The burst before the edge, and the one after it.
    bursts: Vec<Value>,
    /// The counts in between.
    looks: Vec<Value>,
}

async fn record(traffic: &Traffic, settings: &Settings) -> Result<Recording, Box<dyn Error>> {
    let mut recording = Recording::default();
    let (_stop, stopped) = oneshot::channel();
    let (page, mut lines) = Channel::<Bytes>::new(4);
    let watch = async {
        let mut times = interval(LOOK);
        let mut is_running = true;
        while is_running || traffic.now().time < recording.end() {
            tokio::select! {
                line = lines.frame(), if is_running => match line {
                    Some(line) => recording.add(&line?.into_data().unwrap_or_default(), traffic)?,
                    None => is_running = false,
                },
                _ = times.tick() => recording.looks.push(look(traffic, settings).await),
            }
        }
        Ok::<_, Box<dyn Error>>(recording)
    };
    let ((), recording) = tokio::join!(edge::run(traffic, settings, stopped, page), watch);
    recording
}

impl Recording {
    /// Adds a line of the burst.
    fn add(&mut self, line: &[u8], traffic: &Traffic) -> Result<(), serde_json::Error> {
        let report: Value = serde_json::from_slice(line)?;
        if let Some(until) = report["edge_in"].as_u64() {
            self.edge = traffic.now().time + until;
        } else if report["done"].is_null() {
            self.bursts.push(report);
        }
        Ok(())
    }

    fn begin(&self) -> u64 {
        let first = self.bursts.first().map_or(0, time);
        first.saturating_sub(micros(BEFORE))
    }

    fn end(&self) -> u64 {
        self.bursts.last().map_or(0, time) + micros(AFTER)
    }

    /// All times are since the begin.
    fn to_json(&self) -> Value {
        let begin = self.begin();
        let moved = |report: &Value| {
            let mut report = report.clone();
            report["now"] = (time(&report) - begin).into();
            for request in report["requests"].as_array_mut().into_iter().flatten() {
                let began = request[0].as_u64().unwrap_or_default();
                request[0] = began.saturating_sub(begin).into();
            }
            report
        };
        let looks = self.looks.iter().filter(|look| time(look) >= begin);
        json!({
            "length": self.end() - begin,
            "edge": self.edge.saturating_sub(begin),
            "bursts": self.bursts.iter().map(moved).collect::<Vec<_>>(),
            "looks": looks.map(moved).collect::<Vec<_>>(),
        })
    }
}

fn time(report: &Value) -> u64 {
    report["now"].as_u64().unwrap_or_default()
}

/// Joins all files to one. A module cannot import another one by its path then, so each has a name.
fn page(recording: &Value) -> String {
    let recording = format!("export const RECORDING = {recording};\n");
    let mut files = page::files();
    files.push(("/recording.js", SCRIPT, recording));
    let text_of = |name: &str| {
        let mut files = files.iter();
        let file = files.find(|(path, _, _)| *path == name);
        file.map_or("", |(_, _, text)| text)
    };
    let modules = files.iter().filter(|(_, kind, _)| *kind == SCRIPT);
    let modules = modules.map(|(path, _, text)| {
        let text = match *path {
            "/server.js" => text_of("/recorded.js"),
            _ => text,
        };
        let named = text.replace("from \"./", "from \"");
        let url = format!("data:text/javascript;base64,{}", STANDARD.encode(named));
        (path.trim_start_matches('/').to_owned(), Value::from(url))
    });
    let imports = json!({ "imports": modules.collect::<Map<_, _>>() });
    let icon = STANDARD.encode(text_of("/favicon.svg"));
    let scripts = format!(
        "<script type=\"importmap\">{imports}</script>\n  <script type=\"module\">import \"main.js\";</script>"
    );
    let policy = format!(
        "<meta charset=\"utf-8\">\n  <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">"
    );
    let style = format!("<style>\n{}</style>", text_of("/style.css"));
    text_of("/")
        .replace("<meta charset=\"utf-8\">", &policy)
        .replace(
            "href=\"/favicon.svg\"",
            &format!("href=\"data:image/svg+xml;base64,{icon}\""),
        )
        .replace("<link rel=\"stylesheet\" href=\"/style.css\">", &style)
        .replace(
            "<script type=\"module\" src=\"/main.js\"></script>",
            &scripts,
        )
}
