// The burst across an edge of fixed windows, and the figures of the two algorithms that are compared.

import { limits, multiple, number, seconds, span, write } from "./text.js";

const byId = (id) => document.getElementById(id);

const QUESTION = "How many requests pass in a burst across the edge of a fixed window?";
const ANSWER = "At the edge, in the middle of the burst, the fixed window counted from zero again.";

const element = (tag, className, text = "") =>
  Object.assign(document.createElement(tag), { className, textContent: text });

/** The figures of two algorithms side by side. */
export class Verdict {
  constructor() {
    this.figures = [0, 1].map(() => {
      const root = element("div", "figure");
      const [name, ratio, units] = [element("dt"), element("dd", "ratio"), element("dd", "units")];
      root.append(name, ratio, units);
      byId("verdict").append(root);
      return { root, name, ratio, units };
    });
  }

  /** `lanes`: the name of each algorithm and its `most`. */
  show(quotas, lanes) {
    write(byId("limit"), limits(quotas));
    lanes.forEach(({ name, most }, i) => {
      const { root, ...figure } = this.figures[i];
      write(figure.name, name);
      write(figure.ratio, most.units > 0 ? `${multiple(most.ratio)} the limit` : "–");
      const { units, limit, window } = most;
      const text = `${number(units)} admitted within ${span(window)}, limit ${number(limit)}`;
      write(figure.units, most.units > 0 ? text : "nothing admitted yet");
      root.dataset.beyond = most.ratio > 1;
    });
  }
}

/**
 * Shows whether the burst is offered, and how far it is. `wait`: milliseconds until the edge; `Infinity` if it is
 * not known yet, null if no burst is on its way.
 * `isDone`: whether the charts show one.
 */
export function showEdge(off, wait, isDone) {
  const button = byId("edge");
  button.disabled = off !== null && wait === null;
  write(button, wait === null ? "Fire a burst across a window edge" : "Cancel");
  const coming = wait === Infinity ? "soon" : `in ${seconds(wait)}`;
  const progress = wait > 0 ? `The next edge comes ${coming}. Half of the burst goes before it, half after it.` : "Firing …";
  write(byId("edge-note"), wait === null ? off ?? (isDone ? ANSWER : QUESTION) : progress);
}
