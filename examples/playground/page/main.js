// Joins the form, the server and the charts.

import { ALGORITHMS } from "./algorithms.js";
import { PAD, palette, ticks } from "./chart.js";
import { Verdict, showEdge } from "./edge.js";
import { LaneView } from "./lane.js";
import { isLeased, showLease } from "./lease.js";
import {
  Gauges, say, showAnswer, showErrors, showNumbers, showSources, showState, showStore,
} from "./readout.js";
import * as server from "./server.js";
import { Session, serverNow } from "./session.js";
import * as settings from "./settings.js";
import { multiple, number, seconds, write } from "./text.js";

const byId = (id) => document.getElementById(id);

/** Milliseconds between two reads of the counts. Other clients may use the same key. */
const PEEK_EVERY = 200;

/** The longest backoff while the server is unreachable, in milliseconds. */
const MAX_BACKOFF = 5_000;

/** Settings apply when typing has paused for this long, in milliseconds. */
const TYPING_PAUSE = 250;

/** Milliseconds between two updates of the text. Charts update with each frame. */
const TEXT_EVERY = 100;

/** The limit, shares, key and lease that the page shows, with their history. */
let session = null;
let gauges = null;
/** Whether the form is valid. */
let valid = false;
let colors = palette();
/** The running stream or burst across the edge, see `run`. */
let running = null;
/** Why a burst across the edge is not offered, or null. */
let edgeOff = null;

const verdict = new Verdict();
const views = ALGORITHMS.map((algorithm, i) => new LaneView(algorithm, () => choose(i)));

/** Records a report. Reports of an earlier session are ignored. */
function take(report, to) {
  if (to !== session) return;
  if (!session.record(report)) {
    // The server was restarted.
    session = null;
    apply();
    return;
  }
  if (!server.isRecorded) showStore(report.lanes[session.chosen]);
  if (report.requests.length > 0) showLast();
}

/** Shows the selected algorithm's response to the last request. */
function showLast() {
  showAnswer(ALGORITHMS[session.chosen].name, session.answers?.[session.chosen] ?? null);
}

// Settings.

/** The settings whose counts and charts are their own, and their names. */
const COUNTED_APART = { quotas: "limit", shares: "shares", key: "key", lease: "lease" };

/** Returns the names of the fields with other values. */
const changed = (fields, before, now) => Object.keys(fields).filter((field) => before[field] !== now[field]);

/**
 * Applies the form. A new limit, key or lease, and other shares start a new session; a new algorithm or cost does not.
 * A running stream goes on with the new settings.
 */
async function apply() {
  const current = settings.read();
  try {
    const report = await server.peek(current);
    // The user has typed more since.
    if (JSON.stringify(settings.read()) !== JSON.stringify(current)) return;
    const changes = session ? changed(COUNTED_APART, session.settings, current) : [];
    if (!session || changes.length > 0) {
      const names = changes.map((field) => COUNTED_APART[field]).join(" and ");
      session = new Session(current, report.quotas, changes.length > 0 ? `new ${names}` : null);
      gauges = Gauges.of(report.quotas);
      showAxis(session.history.span);
    }
    session.settings = current;
    showLease(report.lease);
    showLegend();
    edgeOff = report.edge_off;
    valid = true;
    take(report, session);
    if (!session) return;
    showErrors(null);
    if (!server.isRecorded) settings.keep(current);
    byId("command").textContent = server.command(current);
    arrange();
    showLast();
    showText();
    running?.change(current, changes);
  } catch (error) {
    fail(error);
  }
}

/** Shows what the hatching of the charts means. */
function showLegend() {
  const { shares } = session.settings;
  byId("shares-hint").hidden = !shares;
  byId("legend-held").hidden = !shares && !isLeased();
  const text = shares ? "kept for critical, not used yet" : "units held: taken in advance, not used yet";
  write(byId("legend-held").lastElementChild, text);
}

function fail(error) {
  if (error instanceof server.Invalid) {
    valid = false;
    showErrors(error);
    say(`Invalid settings: ${error.message}`);
  } else if (error instanceof server.Unreachable) {
    showState("failing", "The playground is unreachable. Is it still running?");
  } else {
    throw error;
  }
}

function choose(algorithm) {
  byId("algorithm").value = ALGORITHMS[algorithm].id;
  apply();
}

/** Puts the selected algorithm first and the one to compare with second. */
function arrange() {
  const focused = document.activeElement;
  const large = [views[session.chosen], views[session.compared]];
  const others = views.filter((view) => !large.includes(view));
  for (const view of views) view.arrange(view === large[0], large.includes(view), session.quotas);
  const roots = (views) => views.map(({ root }) => root);
  byId("lanes").replaceChildren(...roots(large));
  byId("more").replaceChildren(...roots(others));
  if (focused?.closest(".lane")) focused.focus();
}

function showAxis(span) {
  const labels = () => ticks(span).map((tick) => {
    const label = document.createElement("span");
    label.textContent = tick === 0 ? "now" : `−${tick / 1000} s`;
    label.className = tick === 0 ? "last" : "";
    label.style.left = `calc((100% - ${PAD}px) * ${1 - tick / span})`;
    return label;
  });
  for (const axis of document.querySelectorAll(".axis")) {
    // A label at the left edge would be cut off.
    axis.replaceChildren(...labels().slice(0, ticks(span).at(-1) === span ? -1 : undefined));
  }
}

// Traffic.

/** Applies the form at once. Returns whether it is valid. */
async function ready() {
  clearTimeout(typing);
  await apply();
  return valid && session !== null;
}

/** Sends requests at once, within the connection limit of the browser. */
async function send(count) {
  if (count === null || !(await ready())) return;
  const { settings: current } = session;
  const to = session;
  let admitted = 0;
  const requests = Array.from({ length: count }, async () => {
    const report = await server.send(current);
    const [[, , bits]] = report.requests;
    admitted += (bits >> to.chosen) & 1;
    take(report, to);
  });
  try {
    await Promise.all(requests);
  } catch (error) {
    return fail(error);
  }
  showText();
  const outcome = count === 1
    ? (admitted === 1 ? "Admitted." : "Refused.")
    : `${count} requests: ${admitted} admitted, ${count - admitted} refused.`;
  const { wait } = to;
  // With shares, this is the wait of the share that was refused. The next request may be of another one.
  const isKnown = wait > 0 && wait < Infinity && !current.shares;
  const then = isKnown ? ` The next request is admitted in ${seconds(wait)}.` : "";
  say(outcome + then);
}

/** A stream, which goes on with new settings, or a burst across the edge, which ends when they change. */
class Running {
  /** When the edge comes, in milliseconds by this page's clock; null in a stream. */
  edge = null;
  /** Whether it goes on with new settings. */
  goesOn = false;

  constructor(begin) {
    this.begin = begin;
    this.ended = this.#run().catch(fail).finally(() => {
      running = null;
      showRunning();
    });
  }

  async #run() {
    do {
      this.goesOn = false;
      const to = session;
      let seen = 0;
      this.stream = this.begin(to.settings, (report) => {
        if (report.edge_in !== undefined) {
          this.edge = performance.now() + report.edge_in / 1000;
          to.edge = serverNow() + report.edge_in / 1000;
          return;
        }
        seen += report.requests.length;
        take(report, to);
      });
      const done = await this.stream.counted;
      showText();
      if (done.asked !== seen) {
        say(`Error: the server counted ${done.asked} requests, but the page received ${seen}.`);
      } else if (!this.goesOn) {
        this.say(done, to);
      }
    } while (this.goesOn);
  }

  stop() {
    this.goesOn = false;
    this.stream.stop().catch(fail);
  }
}

class Steady extends Running {
  constructor(pace) {
    const end = performance.now() + 1000 * pace.seconds;
    super((settings, seen) => {
      const left = Math.max(1, Math.round((end - performance.now()) / 1000));
      return server.Stream.steady(settings, { ...pace, seconds: left }, seen);
    });
    say(`Sending ${pace.rate} requests per second for ${pace.seconds} s.`);
  }

  /** Goes on with these settings. Each report has the responses of all algorithms, so another one changes nothing. */
  change(current, changes) {
    if (changed({ ...COUNTED_APART, cost: "cost" }, this.stream.settings, current).length === 0) return;
    this.stop();
    this.goesOn = true;
    const names = changes.map((field) => COUNTED_APART[field]).join(" and ");
    say(changes.length > 0
      ? `New ${names}: the chart and all numbers begin again, and the stream goes on.`
      : "New cost: the stream goes on with it.");
  }

  say({ asked, admitted }, { chosen }) {
    say(`${number(asked)} requests: ${number(admitted[chosen])} admitted.`);
  }
}

class AcrossEdge extends Running {
  constructor() {
    super(server.Stream.acrossEdge);
    say("Waiting for the next edge of fixed windows.");
  }

  change(current, changes) {
    if (changes.length > 0 || current.cost !== this.stream.settings.cost) this.stop();
  }

  say({ asked, admitted }, to) {
    if (asked === 0) return say("No burst was sent.");
    to.isCrossed = true;
    const { chosen, compared, history } = to;
    const told = [chosen, compared].map((i) =>
      `${ALGORITHMS[i].name} admitted ${number(admitted[i])}, ${multiple(history.lanes[i].most.ratio)} the limit`);
    say(`${number(asked)} requests across an edge: ${told.join("; ")}.`);
  }
}

async function startStream() {
  const pace = { rate: settings.number("rate"), seconds: settings.number("seconds") };
  if (pace.rate === null || pace.seconds === null || !(await ready())) return;
  if (running instanceof AcrossEdge) {
    stop();
    await running.ended;
  }
  await run(() => new Steady(pace));
}

/** Starts from zero, so that the figures are those of the burst. */
async function startAcrossEdge() {
  if (await resetCounts()) await run(() => new AcrossEdge());
}

/** Shows a first visitor what happens at an edge, unless the key is in use. */
async function welcome() {
  const isUsed = session?.history.lanes.some(({ usedNow }) => usedNow > 0);
  if (isFirstVisit && session && edgeOff === null && !isUsed) await run(() => new AcrossEdge());
}

async function run(start) {
  // The button was pressed twice.
  if (running) return;
  running = start();
  showRunning();
  await running.ended;
}

function stop() {
  running?.stop();
}

function showRunning() {
  const button = byId("stream");
  const isSteady = running instanceof Steady;
  button.textContent = isSteady ? "Stop stream" : "Start stream";
  button.setAttribute("aria-pressed", isSteady);
  showText();
}

/** Resets the counts, and returns whether they are. */
async function resetCounts() {
  // Otherwise the stream would charge more after the reset.
  stop();
  await running?.ended;
  if (!(await ready())) return false;
  try {
    const failure = await server.reset(session.settings);
    if (failure !== null) {
      say(`Not reset: ${failure}`);
      return false;
    }
    session = null;
    await apply();
    say("Counts of this key reset.");
    return session !== null;
  } catch (error) {
    fail(error);
    return false;
  }
}

// Drawing.

let quiet = false;
let drawn = 0;
const still = matchMedia("(prefers-reduced-motion: reduce)");

function draw(time) {
  requestAnimationFrame(draw);
  // With reduced motion, draw two frames per second.
  if (!session || (still.matches && time - drawn < 500)) return;
  const { history } = session;
  history.advance(serverNow());
  const wasQuiet = quiet;
  quiet = history.isQuiet;
  if (quiet && wasQuiet && time - drawn < 1_000) return;
  drawn = time;
  const top = history.peak > 1.15 ? Math.max(2.15, history.peak * 1.05) : 1.2;
  const { edges, change, since, settings: { shares } } = session;
  views.forEach((view, i) => {
    view.chart.draw(history, history.lanes[i], {
      now: history.until, top, isLarge: view.isLarge, edges: ALGORITHMS[i].isAligned ? edges : [],
      hasShares: shares && ALGORITHMS[i].hasShares,
      change: change && { text: change, time: since },
    }, colors);
  });
}

function showText() {
  if (!session) return;
  const { history, quotas, chosen, compared, settings: { shares } } = session;
  const { decision, fromMemory, sent } = history.lanes[chosen];
  if (decision) gauges.show(ALGORITHMS[chosen].name, decision, shares);
  showNumbers(decision, session.wait, history.asked);
  showSources(decision, fromMemory, sent);
  views.forEach((view, i) => view.showCounts(history.lanes[i]));
  verdict.show(quotas, [chosen, compared].map((i) => ({ name: ALGORITHMS[i].name, most: history.lanes[i].most })));
  const isAcross = running instanceof AcrossEdge;
  showEdge(edgeOff, isAcross ? (running.edge ?? Infinity) - performance.now() : null, session.isCrossed);
  byId("legend-alone").hidden = !history.hasAlone;
}

/** Reads the counts, again and again. */
async function poll(pause) {
  let next = PEEK_EVERY;
  const to = session;
  try {
    if (to && !document.hidden) take(await server.peek(to.settings), to);
  } catch (error) {
    next = Math.min(2 * pause, MAX_BACKOFF);
    fail(error);
  } finally {
    setTimeout(poll, next, next);
  }
}

// Start.

function onSubmit(form, action) {
  byId(form).addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

/** The address of the page has settings as soon as they are applied. */
const isFirstVisit = location.search === "";
settings.fill();
let typing;
for (const field of ["algorithm", "shares", "lease"]) byId(field).addEventListener("change", apply);
for (const field of ["quotas", "key", "cost"]) {
  byId(field).addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(apply, TYPING_PAUSE);
  });
}
onSubmit("one", () => send(1));
onSubmit("many", () => send(settings.number("burst")));
onSubmit("steady", () => (running instanceof Steady ? stop() : startStream()));
byId("edge").addEventListener("click", () => (running instanceof AcrossEdge ? stop() : startAcrossEdge()));
byId("reset").addEventListener("click", resetCounts);
for (const scheme of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
  matchMedia(scheme).addEventListener("change", () => {
    colors = palette();
    quiet = false;
  });
}
setInterval(showText, TEXT_EVERY);
poll(PEEK_EVERY);
apply().then(() => {
  requestAnimationFrame(draw);
  return welcome();
});
