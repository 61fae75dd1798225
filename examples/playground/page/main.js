// Joins the form, the server and the charts.

import { ALGORITHMS } from "./algorithms.js";
import { PAD, palette, ticks } from "./chart.js";
import { LaneView } from "./lane.js";
import { showLease } from "./lease.js";
import {
  Gauges, say, seconds, showAnswer, showErrors, showNumbers, showSources, showState, showStore,
} from "./readout.js";
import * as server from "./server.js";
import { Session, serverNow } from "./session.js";
import * as settings from "./settings.js";

const byId = (id) => document.getElementById(id);

/** Milliseconds between two reads of the counts. Other clients may use the same key. */
const PEEK_EVERY = 200;

/** The longest backoff while the server is unreachable, in milliseconds. */
const MAX_BACKOFF = 5_000;

/** Settings apply when typing has paused for this long, in milliseconds. */
const TYPING_PAUSE = 250;

/** Milliseconds between two updates of the text. Charts update with each frame. */
const TEXT_EVERY = 100;

/** The limit, key and lease that the page shows, with their history. */
let session = null;
let gauges = null;
/** Whether the form is valid. */
let valid = false;
let colors = palette();
/** The running stream, and a promise that resolves after its end was shown. */
let running = null;

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
  showStore(report.lanes[session.chosen]);
  if (report.requests.length > 0) showAnswer(report.answer);
}

// Settings.

/** Applies the form. A new limit, key or lease starts a new session; a new algorithm or cost does not. */
async function apply() {
  const current = settings.read();
  const same = session && ["quotas", "key", "lease"].every((field) => current[field] === session.settings[field]);
  try {
    const report = await server.peek(current);
    // The user has typed more since.
    if (JSON.stringify(settings.read()) !== JSON.stringify(current)) return;
    if (!same) {
      stop();
      session = new Session(current, report.quotas);
      gauges = Gauges.of(report.quotas);
      showAxis(session.history.span);
    }
    session.settings = current;
    showLease(report.lease);
    valid = true;
    take(report, session);
    if (!session) return;
    showErrors(null);
    settings.keep(current);
    byId("command").textContent = server.command(current);
    arrange();
    showText();
  } catch (error) {
    fail(error);
  }
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

/** Puts the selected algorithm first. */
function arrange() {
  const focused = document.activeElement;
  const first = views[session.chosen];
  for (const view of views) view.chosen = view === first;
  byId("lanes").replaceChildren(...[first, ...views.filter((view) => view !== first)].map(({ root }) => root));
  if (byId("lanes").contains(focused)) focused.focus();
}

function showAxis(span) {
  const labels = ticks(span).map((tick) => {
    const label = document.createElement("span");
    label.textContent = tick === 0 ? "now" : `−${tick / 1000} s`;
    label.className = tick === 0 ? "last" : "";
    label.style.left = `calc((100% - ${PAD}px) * ${1 - tick / span})`;
    return label;
  });
  // A label at the left edge would be cut off.
  byId("axis").replaceChildren(...labels.slice(0, ticks(span).at(-1) === span ? -1 : undefined));
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
    if (report.answer.status === 200) admitted += 1;
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
  const then = wait > 0 && wait < Infinity ? ` The next request is admitted in ${seconds(wait)}.` : "";
  say(outcome + then);
}

async function startStream() {
  const pace = { rate: settings.number("rate"), seconds: settings.number("seconds") };
  if (pace.rate === null || pace.seconds === null || !(await ready())) return;
  // The button was pressed twice.
  if (running) return;
  const to = session;
  let seen = 0;
  const stream = new server.Stream(to.settings, pace, (report) => {
    seen += report.requests.length;
    take(report, to);
  });
  say(`Sending ${pace.rate} requests per second for ${pace.seconds} s.`);
  const ended = stream.counted.then((done) => showEnd(done, seen, to)).catch(fail).finally(() => {
    running = null;
    showRunning();
  });
  running = { stream, ended };
  showRunning();
  await ended;
}

function showEnd(done, seen, { chosen }) {
  const admitted = done.admitted[chosen];
  say(done.asked === seen
    ? `${done.asked.toLocaleString("en")} requests: ${admitted.toLocaleString("en")} admitted.`
    : `Error: the server counted ${done.asked} requests, but the page received ${seen}.`);
}

function stop() {
  running?.stream.stop().catch(fail);
}

function showRunning() {
  const button = byId("stream");
  button.textContent = running ? "Stop stream" : "Start stream";
  button.setAttribute("aria-pressed", running !== null);
}

async function resetCounts() {
  // Otherwise the stream would charge more after the reset.
  stop();
  await running?.ended;
  if (!(await ready())) return;
  try {
    const failure = await server.reset(session.settings);
    if (failure !== null) return say(`Not reset: ${failure}`);
    session = null;
    await apply();
    say("Counts of this key reset.");
  } catch (error) {
    fail(error);
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
  const { edges } = session;
  views.forEach((view, i) => {
    view.chart.draw(history, history.lanes[i], {
      now: history.until, top, isLarge: i === session.chosen, edges: ALGORITHMS[i].isAligned ? edges : [],
    }, colors);
  });
}

function showText() {
  if (!session) return;
  const { history, quotas, chosen } = session;
  const { decision, fromMemory, sent } = history.lanes[chosen];
  if (decision) gauges.show(decision);
  showNumbers(decision, session.wait, history.asked);
  showSources(decision, fromMemory, sent);
  views.forEach((view, i) => view.showCounts(history.lanes[i], quotas.length === 1));
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

settings.fill();
let typing;
for (const field of ["algorithm", "lease"]) byId(field).addEventListener("change", apply);
for (const field of ["quotas", "key", "cost"]) {
  byId(field).addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(apply, TYPING_PAUSE);
  });
}
onSubmit("one", () => send(1));
onSubmit("many", () => send(settings.number("burst")));
onSubmit("steady", () => (running ? stop() : startStream()));
byId("reset").addEventListener("click", resetCounts);
for (const scheme of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
  matchMedia(scheme).addEventListener("change", () => {
    colors = palette();
    quiet = false;
  });
}
setInterval(showText, TEXT_EVERY);
poll(PEEK_EVERY);
apply().then(() => requestAnimationFrame(draw));
