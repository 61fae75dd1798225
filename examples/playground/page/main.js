// Joins the form, the server and the charts.

import { ALGORITHMS } from "./algorithms.js";
import { PAD, palette, ticks } from "./chart.js";
import { LaneView } from "./lane.js";
import { Gauges, say, seconds, showAnswer, showErrors, showNumbers, showState, showStore } from "./readout.js";
import * as server from "./server.js";
import { Session, serverNow } from "./session.js";
import * as settings from "./settings.js";

const byId = (id) => document.getElementById(id);

/** Others may use the same key: so often it is looked at, in milliseconds. */
const LOOK_EVERY = 200;

/** Who does not answer is asked ever more seldom, but so often that its return is soon seen. */
const LOOK_AT_LEAST_EVERY = 5_000;

/** Who pauses for so long has typed what is meant. */
const TYPING = 250;

/** Text changes so often; charts with each frame. */
const TELL_EVERY = 100;

/** What is set, and what was seen of it. */
let session = null;
let gauges = null;
/** Whether what stands in the form can be used. */
let valid = false;
let colors = palette();
/** The stream that runs, and when its end has been told. */
let running = null;

const views = ALGORITHMS.map((algorithm, i) => new LaneView(algorithm, () => choose(i)));

/** Takes in a report of the session; one that is over is let go. */
function take(report, to) {
  if (to !== session) return;
  if (!session.record(report)) {
    // The server was started anew, and so is this.
    session = null;
    apply();
    return;
  }
  showStore(report.lanes[session.chosen]);
  if (report.requests.length > 0) showAnswer(report.answer);
}

// What is set.

/** Takes what is set. Another limit or key begins anew; another algorithm or cost does not. */
async function apply() {
  const current = settings.read();
  const same = session && current.quotas === session.settings.quotas && current.key === session.settings.key;
  try {
    const report = await server.peek(current);
    // Typed on meanwhile.
    if (JSON.stringify(settings.read()) !== JSON.stringify(current)) return;
    if (!same) {
      stop();
      session = new Session(current, report.quotas);
      gauges = Gauges.of(report.quotas);
      showAxis(session.history.span);
    }
    session.settings = current;
    valid = true;
    take(report, session);
    if (!session) return;
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
  } else if (error instanceof server.Unreachable) {
    showState("failing", "The playground does not answer: is it still running?");
  } else {
    throw error;
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
  return valid && session !== null;
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
    take(report, to);
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
  // Pressed twice meanwhile.
  if (running) return;
  const to = session;
  let seen = 0;
  const stream = new server.Stream(to.settings, pace, (report) => {
    seen += report.requests.length;
    take(report, to);
  });
  say(`${pace.rate} requests a second, for ${pace.seconds} s.`);
  const ended = stream.counted.then((done) => tellEnd(done, seen, to)).catch(fail).finally(() => {
    running = null;
    showRunning();
  });
  running = { stream, ended };
  showRunning();
  await ended;
}

function tellEnd(done, seen, { chosen }) {
  const admitted = done.admitted[chosen];
  say(done.asked === seen
    ? `${done.asked.toLocaleString("en")} requests: ${admitted.toLocaleString("en")} admitted, as the server counted.`
    : `The server counted ${done.asked} requests, and the page saw ${seen}.`);
}

function stop() {
  running?.stream.stop().catch(fail);
}

function showRunning() {
  const button = byId("stream");
  button.textContent = running ? "Stop stream" : "Start stream";
  button.setAttribute("aria-pressed", running !== null);
}

async function startOver() {
  // What the stream still sends would be charged after the reset.
  stop();
  await running?.ended;
  if (!(await ready())) return;
  try {
    const failure = await server.reset(session.settings);
    if (failure !== null) return say(`Not reset: ${failure}`);
    session = null;
    await apply();
    say("The counts of this key were reset.");
  } catch (error) {
    fail(error);
  }
}

// What is drawn.

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
  const { edges } = session;
  views.forEach((view, i) => {
    view.chart.draw(history, history.lanes[i], {
      now: history.until, top, isLarge: i === session.chosen, edges: ALGORITHMS[i].isAligned ? edges : [],
    }, colors);
  });
}

function tell() {
  if (!session) return;
  const { history, quotas, chosen } = session;
  const { decision } = history.lanes[chosen];
  if (decision) gauges.show(decision);
  showNumbers(decision, session.wait, history.asked);
  views.forEach((view, i) => view.tell(history.lanes[i], quotas.length === 1));
}

/** Looks how things stand, again and again. */
async function look(pause) {
  let next = LOOK_EVERY;
  const to = session;
  try {
    if (to && !document.hidden) take(await server.peek(to.settings), to);
  } catch (error) {
    next = Math.min(2 * pause, LOOK_AT_LEAST_EVERY);
    fail(error);
  } finally {
    setTimeout(look, next, next);
  }
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
look(LOOK_EVERY);
apply().then(() => requestAnimationFrame(draw));
