// The numbers next to the charts, and the last response.

import { write } from "./lane.js";

const byId = (id) => document.getElementById(id);

const REASONS = { 200: "OK", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable" };

/** Headers of the limit, which are highlighted. */
const OF_LIMIT = /^(retry-after|x-ratelimit-.*|ratelimit.*)$/;

const number = (value) => value.toLocaleString("en");

export function seconds(ms) {
  if (ms >= 3_600_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  if (ms >= 100_000) return `${Math.ceil(ms / 1_000)} s`;
  return `${(Math.ceil(ms / 100) / 10).toFixed(1)} s`;
}

/** Shows a message. Screen readers announce it. */
export function say(text) {
  write(byId("status"), text);
}

/** Shows the error of a field, or removes all errors if there is none. */
export function showErrors(invalid) {
  for (const field of ["quotas", "key", "cost"]) {
    const wrong = invalid?.field === field;
    const error = byId(`${field}-error`);
    error.hidden = !wrong;
    write(error, wrong ? invalid.message : "");
    byId(field).setAttribute("aria-invalid", wrong);
  }
}

/** Shows which store counts. */
export function showStore(decision) {
  const [state, text] = {
    Memory: ["well", "Counts in memory: all tabs share them"],
    Redis: ["well", "Counts in Redis: all tabs and processes share them"],
    Lease: ["well", "Counts in Redis: all tabs and processes share them"],
    RefusalCache: ["well", "Counts in Redis: all tabs and processes share them"],
    Fallback: ["failing", "Redis is unreachable: this process counts alone until it is back"],
    Other: ["well", "Counts in a store of another crate"],
  }[decision?.source] ?? ["failing", "The store is unreachable"];
  showState(state, text);
}

export function showState(state, text) {
  byId("store").dataset.state = state;
  write(byId("store"), text);
}

/** Shows the status line and the headers. */
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

/** A bar for each quota. */
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
      const rest = document.createElement("div");
      rest.className = "held";
      bar.append(fill, rest);
      byId("gauges").append(label, bar);
      return { limit, count, fill, rest };
    });
  }

  static of(quotas) {
    byId("gauges").replaceChildren();
    return new Gauges(quotas);
  }

  show({ used, held }) {
    this.bars.forEach(({ limit, count, fill, rest }, i) => {
      const granted = held > 0 ? `, ${number(held)} held` : "";
      write(count, `${number(used[i])} of ${number(limit)} used${granted}`);
      const part = (units) => (limit > 0 ? Math.min(1, units / limit) : 1);
      fill.style.transform = `scaleX(${part(used[i])})`;
      rest.style.clipPath = `inset(0 ${100 * (1 - part(used[i] + held))}% 0 ${100 * part(used[i])}%)`;
    });
  }
}

/** `wait`: milliseconds, `Infinity` for never, null if no request was refused. */
export function showNumbers(decision, wait, asked) {
  write(byId("remaining"), decision ? number(decision.remaining) : "–");
  const text = wait === null ? "–" : wait === Infinity ? "never" : wait > 0 ? seconds(wait) : "now";
  write(byId("retry"), text);
  write(byId("asked"), number(asked));
}

/** Shows how many checks were decided from memory, and what was sent to Redis. In memory, both say nothing. */
export function showSources(decision, fromMemory, sent) {
  byId("sources").hidden = (decision?.source ?? "Memory") === "Memory";
  write(byId("from-memory"), number(fromMemory));
  write(byId("sent"), number(sent));
}
