// In place of `server.js` on a page that was recorded: the reports of the recording, at their times. Nothing is sent.

import { ALGORITHMS } from "./algorithms.js";
import { RECORDING } from "./recording.js";

export const isRecorded = true;

document.body.dataset.recorded = "";
document.getElementById("store").textContent = "A recording. In the playground, you choose the limit and the traffic";

export class Invalid extends Error {}

export class Unreachable extends Error {}

/** When the recording began, in milliseconds by this page's clock. */
let began = performance.now();

/** The time of the recording at the end is the last one, so that the burst stays visible. */
export const clock = () => Math.min(performance.now(), began + RECORDING.length / 1000);

/** Moves the times of a report to those of this page. */
function moved(report) {
  const at = (time) => time + 1000 * began;
  return { ...report, now: at(report.now), requests: report.requests.map(([time, ...rest]) => [at(time), ...rest]) };
}

export const query = (fields) => `${new URLSearchParams(fields)}`;

export const command = () => "";

export async function peek() {
  const now = 1000 * (clock() - began);
  return moved(RECORDING.looks.findLast((look) => look.now <= now) ?? RECORDING.looks[0]);
}

/** Begins the recording again. */
export async function reset() {
  began = performance.now();
  return null;
}

export class Stream {
  #isStopped = false;

  static acrossEdge = (settings, seen) => new Stream(settings, seen);

  constructor(settings, seen) {
    this.settings = settings;
    this.counted = this.#play(seen);
  }

  async #play(seen) {
    const counts = { asked: 0, admitted: ALGORITHMS.map(() => 0) };
    seen({ edge_in: RECORDING.edge - 1000 * (clock() - began) });
    for (const report of RECORDING.bursts) {
      await new Promise((resolve) => setTimeout(resolve, began + report.now / 1000 - performance.now()));
      if (this.#isStopped) break;
      seen(moved(report));
      counts.asked += report.requests.length;
      for (const [, , bits] of report.requests) {
        counts.admitted = counts.admitted.map((admitted, i) => admitted + ((bits >> i) & 1));
      }
    }
    return counts;
  }

  async stop() {
    this.#isStopped = true;
  }
}
