// Numbers beside the charts: how things stand now, and the last answer as it came.

import { write } from "./lane.js";

const byId = (id) => document.getElementById(id);

const REASONS = { 200: "OK", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable" };

/** Headers that are about the limit. */
const OF_LIMIT = /^(retry-after|x-ratelimit-.*|ratelimit.*)$/;

const number = (value) => value.toLocaleString("en");

export function seconds(ms) {
  if (ms >= 3_600_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  if (ms >= 100_000) return `${Math.ceil(ms / 1_000)} s`;
  return `${(Math.ceil(ms / 100) / 10).toFixed(1)} s`;
}

/** Says something to who listens, too. */
export function say(text) {
  write(byId("status"), text);
}

/** What is wrong with a field; nothing for all. */
export function showErrors(invalid) {
  for (const field of ["quotas", "key", "cost"]) {
    const wrong = invalid?.field === field;
    const error = byId(`${field}-error`);
    error.hidden = !wrong;
    write(error, wrong ? invalid.message : "");
    byId(field).setAttribute("aria-invalid", wrong);
  }
}

/** Where it is counted. */
export function showStore(decision) {
  const [state, text] = {
    Memory: ["well", "Counted in the memory of this process: all tabs share it"],
    Redis: ["well", "Counted in Redis: all tabs and processes share it"],
    RefusalCache: ["well", "Counted in Redis: all tabs and processes share it"],
    Fallback: ["failing", "Redis does not answer: counted in this process meanwhile"],
    Other: ["well", "Counted in a store of another crate"],
  }[decision?.source] ?? ["failing", "The store does not answer"];
  showState(state, text);
}

export function showState(state, text) {
  byId("store").dataset.state = state;
  write(byId("store"), text);
}

/** The status line and the headers; those of the limit stand out. */
export function showAnswer({ status, headers }) {
  const line = document.createElement("strong");
  line.textContent = `HTTP ${status} ${REASONS[status] ?? ""}`;
  line.className = status === 200 ? "" : "refused";
  const lines = headers.map(([name, value]) => {
    const text = `\n${name}: ${value}`;
    if (!OF_LIMIT.test(name)) return text;
    return Object.assign(document.createElement("strong"), { textContent: text });
  });
  byId("answer").replaceChildren(line, ...lines);
}

/** One bar for each quota. */
export class Gauges {
  constructor(quotas) {
    this.bars = quotas.map(({ text, limit }) => {
      const name = Object.assign(document.createElement("span"), { textContent: text });
      const count = document.createElement("b");
      const label = document.createElement("div");
      label.className = "gauge-label";
      label.append(name, count);
      const bar = document.createElement("div");
      bar.className = "gauge";
      const fill = document.createElement("div");
      bar.append(fill);
      byId("gauges").append(label, bar);
      return { limit, count, fill };
    });
  }

  static of(quotas) {
    byId("gauges").replaceChildren();
    return new Gauges(quotas);
  }

  show({ used }) {
    this.bars.forEach(({ limit, count, fill }, i) => {
      write(count, `${number(used[i])} of ${number(limit)} used`);
      const part = limit > 0 ? Math.min(1, used[i] / limit) : 1;
      fill.style.transform = `scaleX(${part})`;
    });
  }
}

/** `wait`: milliseconds, `Infinity` for never, null for none. */
export function showNumbers(decision, wait, asked) {
  write(byId("remaining"), decision ? number(decision.remaining) : "–");
  const text = wait === null ? "–" : wait === Infinity ? "never" : wait > 0 ? seconds(wait) : "now";
  write(byId("retry"), text);
  write(byId("asked"), number(asked));
}
