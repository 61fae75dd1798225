// One limit and key on the page: what was seen of it, and what of that is still to come.

import { ALGORITHMS } from "./algorithms.js";
import { History } from "./history.js";

/** The one whose units return at the edge of an aligned window, all at once. */
const FIXED = ALGORITHMS.findIndex(({ id }) => id === "fixed-window");

/** What the server's clock is behind that of the page, in milliseconds. */
let offset = Infinity;

export const serverNow = () => performance.now() - offset;

/**
 * Sets the server's clock. It was read when a report was written: the least delay is right. Returns
 * whether it is another clock than before, of a server that was started anew.
 */
function setClock(micros) {
  const seen = performance.now() - micros / 1000;
  const isAnother = seen > offset + 5_000;
  offset = isAnother ? seen : Math.min(offset, seen);
  return isAnother;
}

/** How much time is in sight: twice the longest window that one can wait for. */
function spanOf(quotas) {
  const windows = quotas.map(({ window }) => window / 1000);
  const watched = windows.filter((window) => window <= 60_000);
  const longest = watched.length > 0 ? Math.max(...watched) : Math.min(...windows);
  return Math.min(120_000, Math.max(2_000, 2 * longest));
}

/** A moment so long after another; never, if there is no wait that helps. */
const after = (now, wait) => (wait === null ? Infinity : (now + wait) / 1000);

export class Session {
  constructor(settings, quotas) {
    this.settings = settings;
    this.quotas = quotas;
    this.history = new History(quotas, spanOf(quotas), ALGORITHMS.length);
    /** When the last request that was refused may be tried again, by algorithm. */
    this.retryAt = ALGORITHMS.map(() => null);
    /** Where an aligned window ends, once it is known. */
    this.edge = null;
  }

  /** Which algorithm answers. */
  get chosen() {
    return ALGORITHMS.findIndex(({ id }) => id === this.settings.algorithm);
  }

  /** Takes in a report; not one of a server that was started anew. */
  record(report) {
    if (setClock(report.now)) return false;
    this.history.record(report);
    const last = report.requests.at(-1);
    report.lanes.forEach((decision, i) => {
      if (!decision) return;
      if (last) this.retryAt[i] = (last[2] >> i) & 1 ? null : after(report.now, decision.retry_after);
      // Others may have given units back.
      else if (decision.remaining >= Number(this.settings.cost)) this.retryAt[i] = null;
    });
    const fixed = report.lanes[FIXED];
    if (this.quotas.length === 1 && fixed?.used[0] > 0) this.edge = after(report.now, fixed.reset_after);
    return true;
  }

  /** How long until the last refused request may be tried again; null if none was. */
  get wait() {
    const at = this.retryAt[this.chosen];
    return at === null ? null : Math.max(0, at - serverNow());
  }

  /** The edges of aligned windows in sight. */
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
