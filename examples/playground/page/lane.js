// The view of one algorithm: its name, its counts and its chart.

import { Chart } from "./chart.js";

const element = (tag, className, text = "") =>
  Object.assign(document.createElement(tag), { className, textContent: text });

export class LaneView {
  constructor({ id, name, promise }, choose) {
    this.id = id;
    this.root = element("article", "lane");
    this.root.dataset.algorithm = id;
    const head = element("div", "lane-head");
    const title = document.createElement("h3");
    this.button = element("button", "", name);
    this.button.type = "button";
    this.button.title = "Show the responses of this algorithm";
    this.button.addEventListener("click", choose);
    title.append(this.button);
    const counts = element("p", "counts");
    this.admitted = element("b", "admitted", "0");
    this.refused = element("b", "refused", "0");
    this.admitted.title = "admitted";
    this.refused.title = "refused";
    counts.append(this.admitted, this.refused);
    this.most = element("p", "most");
    head.append(title, element("p", "promise", `Admits in any span as long as the window: ${promise}.`), counts, this.most);
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${name}: requests, and units in the trailing window, over time`);
    this.root.append(head, canvas);
    this.chart = new Chart(canvas);
  }

  set chosen(chosen) {
    this.root.dataset.chosen = chosen;
    this.button.setAttribute("aria-pressed", chosen);
  }

  /** Updates the counts. */
  showCounts({ totals, most }, isSingle) {
    write(this.admitted, totals.admitted.toLocaleString("en"));
    write(this.refused, totals.refused.toLocaleString("en"));
    const units = isSingle ? most.units.toLocaleString("en") : `${Math.round(100 * most.ratio)} %`;
    write(this.most, most.units > 0 ? `most in a window: ${units}${isSingle ? "" : " of a limit"}` : "");
    this.most.dataset.beyond = most.ratio > 1;
  }
}

/** Sets a text if it has changed. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
