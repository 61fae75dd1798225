//! Decisions while no unit expires: logs grow all the time.

use crate::args::Args;
use crate::sample::Samples;
use crate::setting::Setting;
use crate::support::redis_server::RedisServer;

const WORKLOADS: [(&str, Setting); 3] = [
    ("10 000 keys, all admitted", Setting::MANY_KEYS),
    ("one hot key, all admitted", Setting::HOT_KEY),
    ("one key, all refused", Setting::REFUSED),
];

const TASKS: [usize; 3] = [1, 64, 512];

pub(crate) async fn print(server: &RedisServer, args: &Args) {
    println!("\n### Filling\n\nThe window is an hour: no unit expires, and logs grow.");
    for (workload, setting) in WORKLOADS {
        for tasks in TASKS {
            let samples = Samples::take(server, &Setting { tasks, ..setting }, args).await;
            samples.print(&format!("{workload}; {tasks} at a time"));
        }
    }
}
