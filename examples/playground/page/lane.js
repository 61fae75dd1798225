// The view of one algorithm: its name, its counts and its chart.

import { Chart } from "./chart.js";
import { SHARES } from "./shares.js";
import { limits, multiple, number, span, write } from "./text.js";

const element = (tag, className, text = "") =>
  Object.assign(document.createElement(tag), { className, textContent: text });

export class LaneView {
  constructor({ id, name, promise, hasShares }, choose) {
    this.id = id;
    this.name = name;
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
    counts.append(this.admitted, this.refused, element("span", "shares", hasShares ? "" : "no shares"));
    this.most = element("p", "most");
    this.alone = element("p", "alone");
    this.shares = element("div", "shares");
    this.parts = SHARES.map((share, i) => {
      const part = element("p", "share", share);
      part.dataset.share = i;
      const [admitted, refused] = [element("b", "admitted"), element("b", "refused")];
      [admitted.title, refused.title] = ["admitted", "refused"];
      part.append(admitted, refused);
      this.shares.append(part);
      return { admitted, refused };
    });
    const told = element("p", "promise", `Admits in any span as long as the window: ${promise}.`);
    head.append(title, told, counts, this.most, this.alone, this.shares);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.root.append(head, this.canvas);
    this.chart = new Chart(this.canvas);
  }

  /** `isCompared`: whether it is one of the two large charts. */
  arrange(isChosen, isCompared, quotas) {
    this.isLarge = isCompared;
    this.root.dataset.chosen = isChosen;
    this.root.dataset.large = isCompared;
    this.button.setAttribute("aria-pressed", isChosen);
    const label = `${this.name}: requests over time, and the units admitted in the window before. Limit: ${limits(quotas)}.`;
    this.canvas.setAttribute("aria-label", label);
  }

  /** Updates the counts. */
  showCounts({ totals, most, shares }) {
    write(this.admitted, number(totals.admitted));
    write(this.refused, number(totals.refused));
    const text = `most in ${span(most.window)}: ${number(most.units)} = ${multiple(most.ratio)} limit`;
    write(this.most, most.units > 0 ? text : "");
    this.most.dataset.beyond = most.ratio > 1;
    write(this.alone, totals.alone > 0 ? `${number(totals.alone)} counted alone` : "");
    this.root.dataset.shares = shares.length > 0;
    shares.forEach(({ totals }, i) => {
      for (const outcome of ["admitted", "refused"]) write(this.parts[i][outcome], number(totals[outcome]));
    });
  }
}
