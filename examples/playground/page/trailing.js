// The units in the trailing window of one quota: a lower bound. Times are milliseconds.

/** Units that return within this fraction of a window are one step of the curve. */
const FINEST = 1 / 2000;

export class Trailing {
  constructor({ limit, window }) {
    this.limit = limit;
    this.window = window / 1000;
    this.units = 0;
    /** When units return, soonest first. Those before `head` have returned. */
    this.queue = [];
    this.head = 0;
  }

  /**
   * Adds units that were charged at an unknown time between `began` and now. They count from now until a window
   * after `began`, which is never too long. So if the curve exceeds the limit, the limit was really exceeded.
   */
  add(began, units) {
    const until = began + this.window;
    this.units += units;
    let place = this.queue.length;
    // Reports may arrive out of order.
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
