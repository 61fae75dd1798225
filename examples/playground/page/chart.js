// Draws the chart of one algorithm: the units in the trailing window, and below them the requests.

import { BINS } from "./history.js";
import { number, span } from "./text.js";

/** Free space at the right edge, so that the latest mark is not cut off. */
export const PAD = 10;

/** A bin with this many requests has a mark of full length. */
const FULL_LENGTH = 500;

const NAMES = [
  "ink", "soft", "grid", "band", "edge", "admitted", "within", "refused", "beyond", "used", "held", "alone",
  "card", "batch",
];

/** The height of the strip above a large chart, which names the window. */
const STRIP = 22;

/** Pixels between two lines of the hatching, of held units and of times without the store. */
const HATCH = 5;
const WIDE_HATCH = 9;

/** Returns the current colors of the style sheet, light or dark. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Returns the marks of the time axis, in milliseconds before now. */
export function ticks(span) {
  const steps = [250, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000];
  const step = steps.find((step) => span / step <= 8) ?? 60_000;
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, i) => i * step);
}

export class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    new ResizeObserver(() => this.#fit()).observe(canvas);
    this.#fit();
  }

  #fit() {
    const scale = devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    this.size = { width: clientWidth, height: clientHeight };
    this.canvas.width = Math.round(clientWidth * scale);
    this.canvas.height = Math.round(clientHeight * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
  }

  /** `view`: `now`, `top` of the scale, `edges` of aligned windows, `change` of the settings, `isLarge`. */
  draw(history, lane, view, colors) {
    const { width, height } = this.size;
    if (width === 0 || history.last === null) return;
    const marks = view.isLarge ? 60 : 30;
    const head = view.isLarge ? STRIP : 6;
    // The process alone counts in other windows.
    const edges = view.edges.filter((edge) => !lane.alone[history.slot(Math.floor(edge / history.bin))]);
    const plot = {
      context: this.context, history, lane, view, edges, colors, width, height,
      floor: height - marks,
      x: (time) => (width - PAD) * (1 - (view.now - time) / history.span),
      y: (ratio) => height - marks - ((height - marks - head) * ratio) / view.top,
    };
    this.context.clearRect(0, 0, width, height);
    drawGround(plot);
    drawAlone(plot);
    drawCurves(plot);
    drawHeld(plot);
    drawLimit(plot);
    drawMarks(plot, marks);
    if (view.isLarge) drawLabels(plot);
  }
}

function drawGround({ context, history, view, edges, colors, x, width, height }) {
  const left = Math.max(0, x(view.now - longestWindow(history)));
  context.fillStyle = colors.band;
  context.fillRect(left, 0, x(view.now) - left, height);
  context.lineWidth = 1;
  context.strokeStyle = colors.grid;
  context.beginPath();
  for (const tick of ticks(history.span)) vertical(context, x(view.now - tick), height);
  context.stroke();
  context.strokeStyle = colors.soft;
  context.setLineDash([2, 3]);
  context.beginPath();
  for (const edge of edges) vertical(context, x(edge), height);
  context.stroke();
  context.setLineDash([]);
}

const longestWindow = ({ quotas }) => Math.max(...quotas.map(({ window }) => window / 1000));

/** Hatches the times at which this process counted alone. */
function drawAlone(plot) {
  const { context, lane, colors, width, height } = plot;
  const band = new Path2D();
  const ends = new Path2D();
  let from = null;
  let to = null;
  const end = () => {
    if (from === null) return;
    band.rect(from, 0, to - from, height);
    ends.rect(from, 0.5, to - from, height - 1);
    from = null;
  };
  eachBin(plot, (left, right, slot) => {
    if (!lane.alone[slot]) return end();
    from ??= left;
    to = right;
  });
  end();
  const lines = new Path2D();
  for (let x = -height; x < width; x += WIDE_HATCH) {
    lines.moveTo(x, 0);
    lines.lineTo(x + height, height);
  }
  context.save();
  context.clip(band);
  context.strokeStyle = colors.alone;
  context.lineWidth = 1;
  context.globalAlpha = 0.45;
  context.stroke(lines);
  context.restore();
  context.strokeStyle = colors.alone;
  context.lineWidth = 1;
  context.stroke(ends);
}

function vertical(context, x, height) {
  context.moveTo(Math.round(x) + 0.5, 0);
  context.lineTo(Math.round(x) + 0.5, height);
}

/** Calls `point` with the left edge, right edge and slot of each visible bin. */
function eachBin({ history, view, x }, point) {
  for (let bin = history.last - BINS; bin <= history.last; bin++) {
    const right = Math.min((bin + 1) * history.bin, view.now);
    point(x(bin * history.bin), x(right), history.slot(bin));
  }
}

/** Where the trailing window has units that this process counted alone, only the outline is drawn: it is not exact. */
function drawCurves(plot) {
  const { context, lane, view, colors, floor, y } = plot;
  const exact = (slot) => (lane.mixed[slot] ? 0 : lane.trailing[slot]);
  const area = (color, base, ratioOf) => {
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(0, base);
    eachBin(plot, (left, right, slot) => {
      const at = y(ratioOf(slot));
      context.lineTo(left, at);
      context.lineTo(right, at);
    });
    context.lineTo(plot.x(plot.view.now), base);
    context.fill();
  };
  const line = (color, width, dashes, ratioOf) => {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.setLineDash(dashes);
    context.beginPath();
    let isDown = false;
    eachBin(plot, (left, right, slot) => {
      const ratio = ratioOf(slot);
      if (ratio !== null) {
        context[isDown ? "lineTo" : "moveTo"](left, y(ratio));
        context.lineTo(right, y(ratio));
      }
      isDown = ratio !== null;
    });
    context.stroke();
    context.setLineDash([]);
  };
  if (lane.most.ratio > 1) {
    context.save();
    context.beginPath();
    context.rect(0, 0, plot.width, y(1));
    context.clip();
    area(colors.beyond, y(1), exact);
    context.restore();
  }
  const within = (slot) => Math.min(exact(slot), 1);
  area(view.hasShares ? colors.held : colors.within, floor, within);
  if (view.hasShares) {
    // Critical stays on top, below what is kept for it. The bin's highest value of each share may be of another time.
    const [, batch, other] = lane.shares.map(({ trailing }) => trailing);
    area(colors.batch, floor, (slot) => Math.min(batch[slot] + other[slot], within(slot)));
    area(colors.within, floor, (slot) => Math.min(other[slot], within(slot)));
  }
  // The area alone has too little contrast.
  line(colors.admitted, 1.5, [], (slot) => (lane.mixed[slot] ? null : Math.min(lane.trailing[slot], 1)));
  line(colors.alone, 1.5, [2, 3], (slot) => (lane.mixed[slot] ? lane.trailing[slot] : null));
  line(colors.used, 1.5, [4, 2], (slot) => (lane.alone[slot] ? null : lane.used[slot]));
}

/** Hatches the units that are held or kept, on top of those that are used. */
function drawHeld(plot) {
  const { context, lane, colors, floor, y } = plot;
  const band = new Path2D();
  const edge = new Path2D();
  eachBin(plot, (left, right, slot) => {
    if (lane.held[slot] === 0 || lane.alone[slot]) return;
    const top = y(lane.used[slot] + lane.held[slot]);
    band.rect(left, top, right - left, y(lane.used[slot]) - top);
    edge.moveTo(left, top);
    edge.lineTo(right, top);
  });
  const lines = new Path2D();
  for (let x = -floor; x < plot.width; x += HATCH) {
    lines.moveTo(x, floor);
    lines.lineTo(x + floor, 0);
  }
  context.strokeStyle = colors.held;
  context.save();
  context.clip(band);
  context.lineWidth = 1.5;
  context.stroke(lines);
  context.restore();
  context.lineWidth = 1.5;
  context.stroke(edge);
}

function drawLimit({ context, history, view, colors, x, y, floor }) {
  context.lineWidth = 1;
  context.strokeStyle = colors.ink;
  horizontal(context, x(view.now), y(1));
  context.strokeStyle = colors.edge;
  horizontal(context, x(view.now), floor);
  if (!view.isLarge || view.top <= 2) return;
  context.strokeStyle = colors.soft;
  context.setLineDash([1, 4]);
  horizontal(context, x(view.now), y(2));
  context.setLineDash([]);
}

/** Names the limit, the window, the edges and what else happened, over all that is drawn. */
function drawLabels(plot) {
  const { context, history, lane, view, edges, colors, x, y, floor } = plot;
  const { change } = view;
  if (change && x(change.time) > 0) {
    const at = x(change.time);
    context.strokeStyle = colors.ink;
    context.lineWidth = 1.5;
    context.beginPath();
    vertical(context, at, plot.height);
    context.stroke();
    const place = Math.max(4, at - widthOf(context, change.text) - 5);
    label(context, colors, change.text, place, floor + 14);
  }
  const { quotas } = history;
  const named = quotas.length > 1 ? "limits" : `limit ${number(quotas[0].limit)}`;
  label(context, colors, named, 4, y(1) - 3);
  if (view.top > 2) label(context, colors, "2 × limit", 4, y(2) - 3);
  const wide = widthOf(context, "edge") + 3;
  for (const edge of edges) {
    const isCut = x(edge) + wide > x(view.now);
    label(context, colors, "edge", isCut ? x(edge) - wide : x(edge) + 3, floor - 4);
  }

  const window = longestWindow(history);
  const [left, right] = [Math.max(0, x(view.now - window)), x(view.now)];
  const text = `${quotas.length > 1 ? "longest window" : "window"}: ${span(window)}`;
  const middle = STRIP / 2;
  context.strokeStyle = colors.soft;
  context.lineWidth = 1.5;
  context.beginPath();
  const length = widthOf(context, text);
  const gap = (right - left - length) / 2 - 5;
  for (const [from, to] of [[left, left + gap], [right - gap, right]]) {
    context.moveTo(from, middle);
    context.lineTo(to, middle);
  }
  for (const [end, way] of [[left, 1], [right, -1]]) {
    context.moveTo(end + 5 * way, middle - 4);
    context.lineTo(end, middle);
    context.lineTo(end + 5 * way, middle + 4);
  }
  context.stroke();
  label(context, colors, text, (left + right - length) / 2, middle + 4);

  let first = null;
  eachBin(plot, (begin, _, slot) => {
    if (lane.alone[slot]) first ??= begin;
  });
  if (first !== null) {
    const away = "Redis away: this process alone";
    label(context, colors, away, Math.max(4, Math.min(first + 4, right - widthOf(context, away))), floor + 14);
  }
}

function horizontal(context, to, y) {
  context.beginPath();
  context.moveTo(0, Math.round(y) + 0.5);
  context.lineTo(to, Math.round(y) + 0.5);
  context.stroke();
}

const FONT = "12px system-ui, sans-serif";

function widthOf(context, text) {
  context.font = FONT;
  return context.measureText(text).width;
}

function label(context, colors, text, x, y) {
  context.font = FONT;
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = colors.card;
  context.strokeText(text, x, y);
  context.fillStyle = colors.ink;
  context.fillText(text, x, y);
}

/** Draws the requests of each bin: admitted ones above the line, refused ones below. Those counted alone are rings. */
function drawMarks(plot, height) {
  const { context, lane, colors, view } = plot;
  const radius = view.isLarge ? 2.8 : 2;
  const reach = height / 2 - radius - 1.5;
  const line = plot.floor + height / 2;
  const length = (requests) => {
    const part = Math.min(1, Math.log(requests) / Math.log(FULL_LENGTH));
    return radius + 1.5 + (reach - radius - 1.5) * part;
  };
  context.strokeStyle = colors.grid;
  context.lineWidth = 1;
  horizontal(context, plot.x(view.now), line);

  const stems = new Path2D();
  const dots = new Path2D();
  const rings = new Path2D();
  const crosses = new Path2D();
  const hanging = new Path2D();
  eachBin(plot, (left, right, slot) => {
    const x = (left + right) / 2;
    if (lane.admitted[slot] > 0) {
      const y = line - length(lane.admitted[slot]);
      stems.moveTo(x, line);
      stems.lineTo(x, y);
      const shape = lane.alone[slot] ? rings : dots;
      shape.moveTo(x + radius, y);
      shape.arc(x, y, radius, 0, 2 * Math.PI);
    }
    if (lane.refused[slot] > 0) {
      const y = line + length(lane.refused[slot]);
      hanging.moveTo(x, line);
      hanging.lineTo(x, y - radius);
      crosses.moveTo(x - radius, y - radius);
      crosses.lineTo(x + radius, y + radius);
      crosses.moveTo(x + radius, y - radius);
      crosses.lineTo(x - radius, y + radius);
    }
  });
  context.lineWidth = 1;
  context.strokeStyle = colors.admitted;
  context.stroke(stems);
  context.fillStyle = colors.admitted;
  context.fill(dots);
  context.fillStyle = colors.card;
  context.fill(rings);
  context.strokeStyle = colors.alone;
  context.lineWidth = 1.5;
  context.stroke(rings);
  context.lineWidth = 1;
  context.strokeStyle = colors.refused;
  context.stroke(hanging);
  context.lineWidth = view.isLarge ? 1.8 : 1.4;
  context.stroke(crosses);
}
