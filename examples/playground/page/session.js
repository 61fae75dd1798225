// One limit, with or without shares, key and lease on the page: its history, and the next times at which units return.

import { ALGORITHMS } from "./algorithms.js";
import { History } from "./history.js";
import { clock } from "./server.js";
import { SHARES } from "./shares.js";

/** The fixed window, whose units all return at the edge of an aligned window. */
const FIXED = ALGORITHMS.findIndex(({ id }) => id === "fixed-window");

/** The difference between the clocks of the page and the server, in milliseconds. */
let offset = Infinity;
/** When the program started that `offset` is of. */
let program = null;

export const serverNow = () => clock() - offset;

/**
 * Updates the difference from the time in a report. The smallest difference is the most accurate, because it has the
 * least delay. Returns whether the server was restarted.
 */
function setClock({ now, started_at: startedAt }) {
  const seen = clock() - now / 1000;
  const isAnother = program !== startedAt;
  const wasKnown = program !== null;
  program = startedAt;
  offset = isAnother ? seen : Math.min(offset, seen);
  return isAnother && wasKnown;
}

/** The visible time span: twice the longest window of at most a minute. */
function spanOf(quotas) {
  const windows = quotas.map(({ window }) => window / 1000);
  const watched = windows.filter((window) => window <= 60_000);
  const longest = watched.length > 0 ? Math.max(...watched) : Math.min(...windows);
  return Math.min(120_000, Math.max(2_000, 2 * longest));
}

/** The time when a wait ends; `Infinity` if no wait is long enough. */
const after = (now, wait) => (wait === null ? Infinity : (now + wait) / 1000);

export class Session {
  /** `change`: how the settings differ from those before, or null. */
  constructor(settings, quotas, change) {
    this.settings = settings;
    this.change = change;
    /** When it began, and the last response of each algorithm. */
    this.since = null;
    this.answers = null;
    /** Whether a burst across an edge was sent. */
    this.isCrossed = false;
    this.quotas = quotas;
    this.history = new History(quotas, spanOf(quotas), ALGORITHMS.length, settings.shares ? SHARES.length : 0);
    /** When to retry the last refused request, by algorithm. */
    this.retryAt = ALGORITHMS.map(() => null);
    /** The end of an aligned window, if known. */
    this.edge = null;
  }

  /** The index of the selected algorithm. */
  get chosen() {
    return ALGORITHMS.findIndex(({ id }) => id === this.settings.algorithm);
  }

  /** Adds a report. Returns false if the server was restarted. */
  record(report) {
    if (setClock(report)) return false;
    this.since ??= report.now / 1000;
    if (report.answers.length > 0) this.answers = report.answers;
    this.history.record(report);
    const last = report.requests.at(-1);
    report.lanes.forEach((decision, i) => {
      if (!decision) return;
      if (last) this.retryAt[i] = (last[2] >> i) & 1 ? null : after(report.now, report.answers[i].retry_after);
      // Units may have been returned elsewhere. With shares, another share may get them.
      else if (!this.settings.shares && decision.remaining >= Number(this.settings.cost)) this.retryAt[i] = null;
    });
    const fixed = report.lanes[FIXED];
    // The windows of the process itself have other edges.
    const isKnown = fixed?.used[0] > 0 && fixed.source !== "Fallback";
    if (this.quotas.length === 1 && isKnown) this.edge = after(report.now, fixed.reset_after);
    return true;
  }

  /** The index of the algorithm to compare with: the fixed window, or the default if that is selected. */
  get compared() {
    return this.chosen === FIXED ? 0 : FIXED;
  }

  /** How long to wait before retrying the last refused request; null if none was refused. */
  get wait() {
    const at = this.retryAt[this.chosen];
    return at === null ? null : Math.max(0, at - serverNow());
  }

  /** The visible edges of aligned windows. */
  get edges() {
    if (this.edge === null) return [];
    const { until, span } = this.history;
    const window = this.quotas[0].window / 1000;
    const edges = [];
    for (let edge = this.edge - Math.floor((this.edge - until + span) / window) * window; edge <= until; edge += window) {
      edges.push(edge);
    }
    return edges;
  }
}
