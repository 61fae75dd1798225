// What happened lately, for each algorithm, in bins of time: as many as are drawn, however many
// requests there were. Times are milliseconds by the server's clock.

export const BINS = 200;

/** More than are drawn: the ring is overwritten out of sight. */
const RING = 256;

/** Units that return so close to each other are one step of the curve, as parts of a window. */
const FINEST = 1 / 2000;

/** The trailing window of one quota, as far as it is certain. */
class Trailing {
  constructor({ limit, window }) {
    this.limit = limit;
    this.window = window / 1000;
    this.units = 0;
    this.queue = [];
    this.head = 0;
  }

  /**
   * A unit was charged at some moment between `began` and `ended`. It is counted from when it is sure
   * to be charged until it may be a window old: so more than the limit is more than the limit.
   */
  add(began, units) {
    const until = began + this.window;
    const last = this.queue.at(-1);
    this.units += units;
    if (last && this.queue.length > this.head && until < last.until + this.window * FINEST) {
      last.until = Math.min(last.until, until);
      last.units += units;
    } else {
      this.queue.push({ until, units });
    }
  }

  advance(now) {
    while (this.head < this.queue.length && this.queue[this.head].until <= now) {
      this.units -= this.queue[this.head++].units;
    }
    if (this.head > 1000) {
      this.queue = this.queue.slice(this.head);
      this.head = 0;
    }
  }

  get ratio() {
    return this.limit > 0 ? this.units / this.limit : 0;
  }
}

/** One algorithm. */
class Lane {
  constructor(quotas) {
    this.trailings = quotas.map((quota) => new Trailing(quota));
    /** Requests, by bin. */
    this.admitted = new Uint32Array(RING);
    this.refused = new Uint32Array(RING);
    /** The most that was in the trailing window, and what the store counted, as parts of the limit. */
    this.trailing = new Float32Array(RING);
    this.used = new Float32Array(RING);
    this.totals = { admitted: 0, refused: 0 };
    /** The most that was in a trailing window since the start. */
    this.most = { units: 0, limit: this.trailings[0].limit, ratio: 0 };
    /** How things stood at last, by the store. */
    this.standing = null;
    this.usedNow = 0;
  }

  advance(now) {
    for (const trailing of this.trailings) trailing.advance(now);
  }

  get fullest() {
    return this.trailings.reduce((one, other) => (other.ratio > one.ratio ? other : one));
  }

  open(slot) {
    this.admitted[slot] = 0;
    this.refused[slot] = 0;
    this.trailing[slot] = this.fullest.ratio;
    this.used[slot] = this.usedNow;
  }

  charge(slot, began, cost) {
    for (const trailing of this.trailings) trailing.add(began, cost);
    const { units, limit, ratio } = this.fullest;
    this.trailing[slot] = Math.max(this.trailing[slot], ratio);
    if (ratio > this.most.ratio) this.most = { units, limit, ratio };
  }

  stand(slot, standing, limits) {
    this.standing = standing;
    const parts = standing.used.map((used, i) => (limits[i] > 0 ? used / limits[i] : 0));
    this.usedNow = Math.max(...parts);
    this.used[slot] = this.usedNow;
  }
}

export class History {
  constructor(quotas, span, lanes) {
    this.quotas = quotas;
    this.span = span;
    this.bin = span / BINS;
    this.lanes = Array.from({ length: lanes }, () => new Lane(quotas));
    this.asked = 0;
    /** Everything until here is in the bins. */
    this.until = 0;
    this.last = null;
    this.standsAt = 0;
  }

  /** The place of a bin in the ring. */
  slot(bin) {
    return ((bin % RING) + RING) % RING;
  }

  /** Lets the windows slide up to a moment. */
  advance(now) {
    if (now <= this.until) return;
    const bin = Math.floor(now / this.bin);
    const from = this.last === null ? bin - RING : Math.max(this.last, bin - RING);
    for (let next = from + 1; next <= bin; next++) {
      for (const lane of this.lanes) {
        lane.advance(next * this.bin);
        lane.open(this.slot(next));
      }
    }
    for (const lane of this.lanes) lane.advance(now);
    this.last = bin;
    this.until = now;
  }

  /** Takes in what the server reports. */
  record({ now, cost, requests, lanes }) {
    for (const [began, took, admitted] of requests) {
      this.#request(began / 1000, (began + took) / 1000, admitted, cost);
    }
    this.advance(now / 1000);
    // Reports may overtake each other.
    if (now < this.standsAt) return;
    this.standsAt = now;
    const limits = this.quotas.map(({ limit }) => limit);
    lanes.forEach((standing, i) => {
      if (standing) this.lanes[i].stand(this.slot(this.last), standing, limits);
    });
  }

  #request(began, ended, admitted, cost) {
    this.advance(ended);
    const oldest = this.last - RING + 1;
    const slot = this.slot(Math.max(Math.floor(ended / this.bin), oldest));
    this.asked += 1;
    this.lanes.forEach((lane, i) => {
      const passed = (admitted >> i) & 1;
      lane[passed ? "admitted" : "refused"][slot] += 1;
      lane.totals[passed ? "admitted" : "refused"] += 1;
      if (passed) lane.charge(this.slot(this.last), began, cost);
    });
  }

  /** The highest curve in sight, as a part of the limit. */
  get peak() {
    let peak = 0;
    for (const lane of this.lanes) {
      for (let bin = this.last - BINS; bin <= this.last; bin++) {
        const slot = this.slot(bin);
        peak = Math.max(peak, lane.trailing[slot], lane.used[slot]);
      }
    }
    return peak;
  }

  /** Whether there is nothing in sight that could move. */
  get isQuiet() {
    const seen = (lane) => lane.admitted.some(Boolean) || lane.refused.some(Boolean);
    return this.peak === 0 && !this.lanes.some(seen);
  }
}
