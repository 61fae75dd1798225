// The trailing window of one quota, as far as it is certain. Times are milliseconds.

/** Units that return so close to each other are one step of the curve, as parts of a window. */
const FINEST = 1 / 2000;

export class Trailing {
  constructor({ limit, window }) {
    this.limit = limit;
    this.window = window / 1000;
    this.units = 0;
    /** When units return, soonest first; those before `head` have. */
    this.queue = [];
    this.head = 0;
  }

  /**
   * A unit was charged at some moment between `began` and now. It is counted from when it is sure to be
   * charged until it may be a window old: so more than the limit is more than the limit.
   */
  add(began, units) {
    const until = began + this.window;
    this.units += units;
    let place = this.queue.length;
    // Reports may overtake each other.
    while (place > this.head && this.queue[place - 1].until > until) place -= 1;
    const before = place > this.head ? this.queue[place - 1] : null;
    if (before && until < before.until + this.window * FINEST) before.units += units;
    else this.queue.splice(place, 0, { until, units });
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
}
