// The numbers next to the charts, and the last response.

import { number, seconds, write } from "./text.js";

const byId = (id) => document.getElementById(id);

const REASONS = { 200: "OK", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable" };

/** How long the end of an outage is shown, in milliseconds. */
const BACK_FOR = 8_000;

/** Headers of the limit, which are highlighted. */
const OF_LIMIT = /^(retry-after|x-ratelimit-.*|ratelimit.*)$/;

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

const SHARED = ["well", "Counts in Redis: all tabs and processes share them"];

/** Shows which store counts. A decision is null if the store failed. */
export function showStore(decision) {
  const [state, text] = {
    Memory: ["well", "Counts in memory: all tabs share them"],
    Redis: SHARED,
    Lease: SHARED,
    RefusalCache: SHARED,
    Fallback: ["failing", "Redis is unreachable: this process counts alone until it is back. Counts are not exact"],
    Other: ["well", "Counts in a store of another crate"],
  }[decision?.source] ?? ["failing", "The store failed: see the output of the playground"];
  showState(state, text);
}

/** Failures are announced, and so is their end. */
export function showState(state, text) {
  const { dataset } = byId("store");
  const wasFailing = dataset.state === "failing";
  dataset.state = state;
  write(byId("store"), state === "failing" ? text.split(":")[0] : text);
  const outage = byId("outage");
  if (state === "failing") {
    outage.dataset.state = state;
    write(outage, text);
  } else if (wasFailing) {
    outage.dataset.state = state;
    write(outage, `Back again. ${text}`);
    setTimeout(() => {
      if (outage.dataset.state !== "failing") write(outage, "");
    }, BACK_FOR);
  }
}

/** Shows the status line and the headers of one algorithm's response; null if there is none yet. */
export function showAnswer(algorithm, answer) {
  write(byId("answer-title"), `Last response: ${algorithm}`);
  if (answer === null) return byId("answer").replaceChildren("none yet");
  const { status, headers } = answer;
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
      const name = document.createElement("span");
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
      return { text, name, limit, count, fill, rest };
    });
  }

  static of(quotas) {
    byId("gauges").replaceChildren();
    return new Gauges(quotas);
  }

  /** Shows the counts of one algorithm. `isKept`: whether units are held because they are kept for a share. */
  show(algorithm, { used, held, source }, isKept) {
    this.bars.forEach(({ text, name, limit, count, fill, rest }, i) => {
      write(name, `${text}, ${algorithm}`);
      const alone = source === "Fallback" ? " in this process" : "";
      const granted = held > 0 ? `, ${number(held)} ${isKept ? "kept" : "held"}` : alone;
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
