// The recent requests of each algorithm, in time bins, so that drawing costs the same for any number of requests.
// Times are milliseconds by the server's clock.

import { Trailing } from "./trailing.js";

export const BINS = 200;

/** More than are drawn, so that the bin that is overwritten is not visible. */
const RING = 256;

/** The index of a bin in the ring. */
const slot = (bin) => ((bin % RING) + RING) % RING;

/** One algorithm. */
class Lane {
  /** `shares`: how many shares are counted apart. */
  constructor(quotas, shares) {
    /** The requests of each share. */
    this.shares = Array.from({ length: shares }, () => new Lane(quotas, 0));
    this.trailings = quotas.map((quota) => new Trailing(quota));
    /** The units in the trailing window of each quota when a bin began. */
    this.starts = quotas.map(() => new Float64Array(RING));
    /** Requests per bin. */
    this.admitted = new Uint32Array(RING);
    this.refused = new Uint32Array(RING);
    /** The most units in the trailing window, and the units used by the store's count, as fractions of the limit. */
    this.trailing = new Float32Array(RING);
    this.used = new Float32Array(RING);
    /** The units that the process holds, or that are kept for a share, beyond those: as a fraction of the limit. */
    this.held = new Float32Array(RING);
    /** Whether the store did not answer in a bin, so that this process counted alone. */
    this.alone = new Uint8Array(RING);
    /** Whether the trailing window of a bin has units that this process counted alone. */
    this.mixed = new Uint8Array(RING);
    this.aloneNow = false;
    /** When the last unit that was counted alone leaves the trailing window. */
    this.mixedUntil = -Infinity;
    this.totals = { admitted: 0, refused: 0, alone: 0 };
    /** The most units in a trailing window since the start, without windows that have units counted alone. */
    const [{ limit, window }] = this.trailings;
    this.most = { units: 0, limit, window, ratio: 0 };
    /** The latest decision of the store. */
    this.decision = null;
    /** The latest decision of the store itself. */
    this.counted = null;
    this.usedNow = 0;
    this.heldNow = 0;
    /** Requests that were decided without the store. */
    this.fromMemory = 0;
    /** Requests of the process to the store: now, and when the page first saw them. */
    this.sentNow = 0;
    this.sentBefore = null;
  }

  /** The requests of the process to the store since the page first saw them. */
  get sent() {
    return Math.max(0, this.sentNow - this.sentBefore);
  }

  advance(now) {
    for (const part of [...this.trailings, ...this.shares]) part.advance(now);
  }

  /** Opens the bin that begins at `time`. */
  open(bin, time) {
    const at = slot(bin);
    this.alone[at] = this.aloneNow;
    this.mixed[at] = time < this.mixedUntil;
    this.admitted[at] = 0;
    this.refused[at] = 0;
    this.trailing[at] = 0;
    this.used[at] = this.usedNow;
    this.held[at] = this.heldNow;
    this.trailings.forEach(({ units }, i) => {
      this.starts[i][at] = units;
      this.#raise(bin, i, units);
    });
    for (const share of this.shares) share.open(bin, time);
  }

  /** Counts a request that was decided in `bin`. */
  count(bin, began, isAdmitted, cost, history) {
    const outcome = isAdmitted ? "admitted" : "refused";
    this[outcome][slot(bin)] += 1;
    this.totals[outcome] += 1;
    if (isAdmitted) this.#charge(bin, began, cost, history);
  }

  /** Notes that a request in `bin` was decided without the store. */
  standAlone(bin, began, isAdmitted, { last, bin: width }) {
    this.alone[slot(bin)] = true;
    this.totals.alone += 1;
    if (!isAdmitted) return;
    const window = Math.max(...this.trailings.map((trailing) => trailing.window));
    this.mixedUntil = Math.max(this.mixedUntil, began + window);
    for (let next = bin; next <= last && next * width < began + window; next++) this.mixed[slot(next)] = true;
  }

  /**
   * Adds a request that was admitted in `bin`. Reports are late, so later bins may be drawn already. The request
   * counts in those too, until its window ends.
   */
  #charge(bin, began, cost, { last, until, bin: width }) {
    this.trailings.forEach((trailing, i) => {
      const starts = this.starts[i];
      for (let next = bin + 1; next <= last && next * width < began + trailing.window; next++) {
        const units = (starts[slot(next)] += cost);
        // A bin ends where the next begins.
        this.#raise(next - 1, i, units);
        this.#raise(next, i, units);
      }
      trailing.add(began, cost);
      trailing.advance(until);
      this.#raise(last, i, trailing.units);
    });
  }

  /** Raises the maximum of a bin to this number of units in the trailing window of a quota. */
  #raise(bin, quota, units) {
    const { limit, window } = this.trailings[quota];
    const ratio = limit > 0 ? units / limit : 0;
    const at = slot(bin);
    this.trailing[at] = Math.max(this.trailing[at], ratio);
    if (ratio > this.most.ratio && !this.mixed[at]) this.most = { units, limit, window, ratio };
  }

  /** The used units. A decision from memory has older numbers, so it adds what this process has used since. */
  #used(decision) {
    if (decision.source !== "Lease" || !this.counted) {
      this.counted = decision;
      return decision.used;
    }
    const since = decision.used_here - this.counted.used_here;
    return this.counted.used.map((used) => used + since);
  }

  /** Applies a decision to the bins from `bin` to `last`; null if there is none because the store failed. */
  update(bin, last, decision, limits) {
    this.aloneNow = decision === null || decision.source === "Fallback";
    // Requests in the first bin may have been decided before.
    if (this.aloneNow) this.alone[slot(bin)] = true;
    for (let since = bin + 1; since <= last; since++) this.alone[slot(since)] = this.aloneNow;
    if (decision === null) return;
    const used = this.#used(decision);
    this.decision = { ...decision, used };
    const parts = used.map((used, i) => (limits[i] > 0 ? used / limits[i] : 0));
    this.usedNow = Math.max(...parts);
    // Of the same quota. Limits are not zero if units are held.
    this.heldNow = decision.held > 0 ? decision.held / limits[parts.indexOf(this.usedNow)] : 0;
    this.sentNow = decision.sent;
    this.sentBefore ??= decision.sent;
    for (let since = bin; since <= last; since++) {
      this.used[slot(since)] = this.usedNow;
      this.held[slot(since)] = this.heldNow;
    }
  }
}

export class History {
  constructor(quotas, span, lanes, shares = 0) {
    this.quotas = quotas;
    this.span = span;
    this.bin = span / BINS;
    this.lanes = Array.from({ length: lanes }, () => new Lane(quotas, shares));
    this.asked = 0;
    /** The bins are complete up to this time. */
    this.until = 0;
    this.last = null;
    this.updatedAt = 0;
  }

  /** The index of a bin in the arrays of a lane. */
  slot(bin) {
    return slot(bin);
  }

  /** The bin of a time, or the oldest bin if the time is earlier. */
  #binOf(time) {
    return Math.max(Math.floor(time / this.bin), this.last - RING + 1);
  }

  /** Moves the trailing windows to a time. */
  advance(now) {
    if (now <= this.until) return;
    const bin = Math.floor(now / this.bin);
    const from = this.last === null ? bin - RING : Math.max(this.last, bin - RING);
    for (let next = from + 1; next <= bin; next++) {
      for (const lane of this.lanes) {
        lane.advance(next * this.bin);
        lane.open(next, next * this.bin);
      }
    }
    for (const lane of this.lanes) lane.advance(now);
    this.last = bin;
    this.until = now;
  }

  /** Adds a report of the server. */
  record({ now, cost, requests, lanes }) {
    for (const [began, took, ...bits] of requests) {
      this.#request(began / 1000, (began + took) / 1000, bits, cost);
    }
    this.advance(now / 1000);
    // Reports may arrive out of order.
    if (now < this.updatedAt) return;
    this.updatedAt = now;
    const limits = this.quotas.map(({ limit }) => limit);
    lanes.forEach((decision, i) => {
      this.lanes[i].update(this.#binOf(now / 1000), this.last, decision, limits);
    });
  }

  #request(began, ended, [admitted, fromMemory, alone, share], cost) {
    this.advance(ended);
    const bin = this.#binOf(ended);
    this.asked += 1;
    this.lanes.forEach((lane, i) => {
      const passed = ((admitted >> i) & 1) === 1;
      lane.fromMemory += (fromMemory >> i) & 1;
      if ((alone >> i) & 1) lane.standAlone(bin, began, passed, this);
      lane.count(bin, began, passed, cost, this);
      lane.shares[share]?.count(bin, began, passed, cost, this);
    });
  }

  /** The highest visible value, as a fraction of the limit. */
  get peak() {
    let peak = 0;
    for (const lane of this.lanes) {
      for (let bin = this.last - BINS; bin <= this.last; bin++) {
        const at = slot(bin);
        peak = Math.max(peak, lane.trailing[at], lane.used[at] + lane.held[at]);
      }
    }
    return peak;
  }

  /** Whether a chart shows times at which this process counted alone. */
  get hasAlone() {
    return this.lanes.some(({ alone, mixed }) => alone.some(Boolean) || mixed.some(Boolean));
  }

  /** Whether the charts are empty. */
  get isQuiet() {
    const seen = (lane) => lane.admitted.some(Boolean) || lane.refused.some(Boolean);
    return this.peak === 0 && !this.lanes.some(seen);
  }
}
