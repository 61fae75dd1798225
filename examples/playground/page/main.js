// Joins the form, the server and the charts.

import { PAD, palette, ticks } from "./chart.js";
import { History } from "./history.js";
import { ALGORITHMS, LaneView } from "./lane.js";
import { Gauges, say, seconds, showAnswer, showErrors, showNumbers, showState, showStore } from "./readout.js";
import * as server from "./server.js";
import * as settings from "./settings.js";

const byId = (id) => document.getElementById(id);

/** Others may use the same key: so often it is looked at. */
const LOOK_EVERY = 200;

/** Who pauses for so long has typed what is meant. */
const TYPING = 250;

/** Text changes so often; charts with each frame. */
const TELL_EVERY = 100;

/** What is set, and what was seen of it. */
let session = null;
/** Whether what stands in the form can be used. */
let valid = false;
let colors = palette();
let offset = Infinity;
let running = null;

const views = ALGORITHMS.map((algorithm, i) => new LaneView(algorithm, () => choose(i)));

/**
 * Sets the server's clock, in milliseconds. It was read when a report was written: the least delay is
 * right. Returns whether it is another clock, of a server that was started anew.
 */
function setClock(micros) {
  const seen = performance.now() - micros / 1000;
  const isAnother = seen > offset + 5_000;
  offset = isAnother ? seen : Math.min(offset, seen);
  return isAnother;
}

const serverNow = () => performance.now() - offset;

/** How much time is in sight: twice the longest window that one can wait for. */
function spanOf(quotas) {
  const windows = quotas.map(({ window }) => window / 1000);
  const watched = windows.filter((window) => window <= 60_000);
  const longest = watched.length > 0 ? Math.max(...watched) : Math.min(...windows);
  return Math.min(120_000, Math.max(2_000, 2 * longest));
}

class Session {
  constructor(current, quotas) {
    this.settings = current;
    this.quotas = quotas;
    this.history = new History(quotas, spanOf(quotas), ALGORITHMS.length);
    this.gauges = Gauges.of(quotas);
    /** When the last request that was refused may be tried again, by algorithm. */
    this.retryAt = ALGORITHMS.map(() => null);
    /** Where an aligned window ends, once it is known. */
    this.edge = null;
    showAxis(this.history.span);
  }

  get chosen() {
    return ALGORITHMS.findIndex(({ id }) => id === this.settings.algorithm);
  }

  record(report) {
    if (setClock(report.now)) {
      session = null;
      apply();
      return;
    }
    this.history.record(report);
    const last = report.requests.at(-1);
    report.lanes.forEach((standing, i) => {
      if (!standing) return;
      if (last) this.retryAt[i] = (last[2] >> i) & 1 ? null : after(report.now, standing.retry_after);
      // Others may have given units back.
      else if (standing.remaining >= Number(this.settings.cost)) this.retryAt[i] = null;
    });
    showStore(report.lanes[this.chosen]);
    if (last) showAnswer(report.answer);
    const fixed = report.lanes.at(-1);
    if (this.quotas.length === 1 && fixed?.used[0] > 0) this.edge = after(report.now, fixed.reset_after);
  }

  /** How long until the last refused request may be tried again. */
  get wait() {
    const at = this.retryAt[this.chosen];
    return at === null ? null : Math.max(0, at - serverNow());
  }
}

/** A moment so long after another; never, if there is no wait that helps. */
const after = (now, wait) => (wait === null ? Infinity : (now + wait) / 1000);

// What is set.

/** Takes what is set. Another limit or key begins anew; another algorithm or cost does not. */
async function apply() {
  const current = settings.read();
  const same = session && current.quotas === session.settings.quotas && current.key === session.settings.key;
  try {
    const report = await server.look(current);
    // Typed on meanwhile.
    if (JSON.stringify(settings.read()) !== JSON.stringify(current)) return;
    if (!same) {
      stop();
      session = new Session(current, report.quotas);
    }
    session.settings = current;
    session.record(report);
    valid = true;
    showErrors(null);
    settings.keep(current);
    byId("command").textContent = server.command(current);
    arrange();
    tell();
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  if (error instanceof server.Invalid) {
    valid = false;
    showErrors(error);
    say(`Cannot be used: ${error.message}`);
  } else {
    showState("failing", "The playground does not answer: is it still running?");
  }
}

function choose(algorithm) {
  byId("algorithm").value = ALGORITHMS[algorithm].id;
  apply();
}

/** The algorithm that answers stands first, the others as always. */
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
  // One at the very edge would be cut.
  byId("axis").replaceChildren(...labels.slice(0, ticks(span).at(-1) === span ? -1 : undefined));
}

// Traffic.

/** Whether what stands in the form is taken, and can be used. */
async function ready() {
  clearTimeout(typing);
  await apply();
  return valid;
}

/** Sends requests at the same time, as far as the browser does. */
async function send(count) {
  if (count === null || !(await ready())) return;
  const { settings: current } = session;
  const to = session;
  let admitted = 0;
  const requests = Array.from({ length: count }, async () => {
    const report = await server.send(current);
    if (report.answer.status === 200) admitted += 1;
    if (to === session) to.record(report);
  });
  try {
    await Promise.all(requests);
  } catch (error) {
    return fail(error);
  }
  tell();
  const outcome = count === 1
    ? (admitted === 1 ? "Admitted." : "Refused.")
    : `${count} requests: ${admitted} admitted, ${count - admitted} refused.`;
  const { wait } = to;
  const then = wait > 0 && wait < Infinity ? ` The next one passes in ${seconds(wait)}.` : "";
  say(outcome + then);
}

async function startStream() {
  const pace = { rate: settings.number("rate"), seconds: settings.number("seconds") };
  if (pace.rate === null || pace.seconds === null || !(await ready())) return;
  const to = session;
  let seen = 0;
  running = crypto.randomUUID();
  showRunning();
  say(`${pace.rate} requests a second, for ${pace.seconds} s.`);
  try {
    const done = await server.stream(to.settings, pace, running, (report) => {
      seen += report.requests.length;
      if (to === session) to.record(report);
    });
    const admitted = done.admitted[to.chosen];
    say(done.asked === seen
      ? `${done.asked.toLocaleString("en")} requests: ${admitted.toLocaleString("en")} admitted, as the server counted.`
      : `The server counted ${done.asked} requests, and the page saw ${seen}.`);
  } catch (error) {
    fail(error);
  }
  running = null;
  showRunning();
}

function stop() {
  if (running) server.stop(running).catch(fail);
}

function showRunning() {
  const button = byId("stream");
  button.textContent = running ? "Stop stream" : "Start stream";
  button.setAttribute("aria-pressed", running !== null);
}

async function startOver() {
  stop();
  try {
    await server.reset(settings.read());
    session = null;
    await apply();
    say("The counts of this key were reset.");
  } catch (error) {
    fail(error);
  }
}

// What is drawn.

/** The edges of aligned windows in sight. */
function edgesOf({ history, quotas, edge }) {
  if (!edge) return [];
  const window = quotas[0].window / 1000;
  const first = edge - Math.floor((edge - (history.until - history.span)) / window) * window;
  const edges = [];
  for (let next = first; next <= history.until; next += window) edges.push(next);
  return edges;
}

let quiet = false;
let drawn = 0;
const still = matchMedia("(prefers-reduced-motion: reduce)");

function draw(time) {
  requestAnimationFrame(draw);
  // Who wants no motion sees steps.
  if (!session || (still.matches && time - drawn < 500)) return;
  const { history } = session;
  history.advance(serverNow());
  const wasQuiet = quiet;
  quiet = history.isQuiet;
  if (quiet && wasQuiet && time - drawn < 1_000) return;
  drawn = time;
  const top = history.peak > 1.15 ? Math.max(2.15, history.peak * 1.05) : 1.2;
  const edges = edgesOf(session);
  views.forEach((view, i) => {
    const isAligned = i === 3 || i === 5;
    view.chart.draw(history, history.lanes[i], {
      now: history.until, top, isLarge: i === session.chosen, edges: isAligned ? edges : [],
    }, colors);
  });
}

function tell() {
  if (!session) return;
  const { history, quotas, chosen } = session;
  const { standing } = history.lanes[chosen];
  if (standing) session.gauges.show(standing);
  showNumbers(standing, session.wait, history.asked);
  views.forEach((view, i) => view.tell(history.lanes[i], quotas.length === 1));
}

let looking = false;

async function look() {
  if (looking || !session || document.hidden) return;
  looking = true;
  const to = session;
  try {
    const report = await server.look(to.settings);
    if (to === session) to.record(report);
  } catch (error) {
    fail(error);
  }
  looking = false;
}

// Off it goes.

function onSubmit(form, action) {
  byId(form).addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

settings.fill();
let typing;
byId("algorithm").addEventListener("change", apply);
for (const field of ["quotas", "key", "cost"]) {
  byId(field).addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(apply, TYPING);
  });
}
onSubmit("one", () => send(1));
onSubmit("many", () => send(settings.number("burst")));
onSubmit("steady", () => (running ? stop() : startStream()));
byId("reset").addEventListener("click", startOver);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colors = palette();
  quiet = false;
});
setInterval(tell, TELL_EVERY);
setInterval(look, LOOK_EVERY);
apply().then(() => requestAnimationFrame(draw));
