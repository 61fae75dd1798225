// Draws the chart of one algorithm: the units in the trailing window, and below them the requests.

import { BINS } from "./history.js";

/** Free space at the right edge, so that the latest mark is not cut off. */
export const PAD = 10;

/** A bin with this many requests has a mark of full length. */
const FULL_LENGTH = 500;

const NAMES = ["ink", "soft", "grid", "band", "edge", "admitted", "within", "refused", "beyond", "used", "held", "card"];

/** Pixels between two lines of the hatching. */
const HATCH = 5;

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

  /** `view`: `now`, `top` of the scale, `edges` of aligned windows, `isLarge`. */
  draw(history, lane, view, colors) {
    const { width, height } = this.size;
    if (width === 0 || history.last === null) return;
    const marks = view.isLarge ? 60 : 30;
    const plot = {
      context: this.context, history, lane, view, colors, width, height,
      floor: height - marks,
      x: (time) => (width - PAD) * (1 - (view.now - time) / history.span),
      y: (ratio) => height - marks - ((height - marks - 6) * ratio) / view.top,
    };
    this.context.clearRect(0, 0, width, height);
    drawGround(plot);
    drawCurves(plot);
    drawHeld(plot);
    drawLimit(plot);
    drawMarks(plot, marks);
  }
}

function drawGround({ context, history, view, colors, x, width, height }) {
  const window = Math.max(...history.quotas.map((quota) => quota.window / 1000));
  const left = Math.max(0, x(view.now - window));
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
  for (const edge of view.edges) vertical(context, x(edge), height);
  context.stroke();
  context.setLineDash([]);
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

function drawCurves(plot) {
  const { context, lane, colors, floor, y } = plot;
  const steps = (ratios, most) => {
    eachBin(plot, (left, right, slot) => {
      const at = y(Math.min(ratios[slot], most));
      context.lineTo(left, at);
      context.lineTo(right, at);
    });
  };
  const area = (color, base, most) => {
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(0, base);
    steps(lane.trailing, most);
    context.lineTo(plot.x(plot.view.now), base);
    context.fill();
  };
  if (lane.most.ratio > 1) {
    context.save();
    context.beginPath();
    context.rect(0, 0, plot.width, y(1));
    context.clip();
    area(colors.beyond, y(1), Infinity);
    context.restore();
  }
  area(colors.within, floor, 1);
  // The area alone has too little contrast.
  context.lineWidth = 1.5;
  context.strokeStyle = colors.admitted;
  context.beginPath();
  steps(lane.trailing, 1);
  context.stroke();
  context.strokeStyle = colors.used;
  context.setLineDash([4, 2]);
  context.beginPath();
  steps(lane.used, Infinity);
  context.stroke();
  context.setLineDash([]);
}

/** Hatches the units that the store has charged in advance, on top of those that are used. */
function drawHeld(plot) {
  const { context, lane, colors, floor, y } = plot;
  const band = new Path2D();
  const edge = new Path2D();
  eachBin(plot, (left, right, slot) => {
    if (lane.held[slot] === 0) return;
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
  if (!view.isLarge) return;
  const several = history.quotas.length > 1;
  label(context, colors, several ? "limits" : `limit ${history.quotas[0].limit}`, y(1) - 3);
  if (view.top > 2) {
    context.strokeStyle = colors.soft;
    context.setLineDash([1, 4]);
    horizontal(context, x(view.now), y(2));
    context.setLineDash([]);
    label(context, colors, "2 × limit", y(2) - 3);
  }
}

function horizontal(context, to, y) {
  context.beginPath();
  context.moveTo(0, Math.round(y) + 0.5);
  context.lineTo(to, Math.round(y) + 0.5);
  context.stroke();
}

function label(context, colors, text, y) {
  context.font = "12px system-ui, sans-serif";
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = colors.card;
  context.strokeText(text, 4, y);
  context.fillStyle = colors.ink;
  context.fillText(text, 4, y);
}

/** Draws the requests of each bin: admitted ones above the line, refused ones below. */
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
  const crosses = new Path2D();
  const hanging = new Path2D();
  eachBin(plot, (left, right, slot) => {
    const x = (left + right) / 2;
    if (lane.admitted[slot] > 0) {
      const y = line - length(lane.admitted[slot]);
      stems.moveTo(x, line);
      stems.lineTo(x, y);
      dots.moveTo(x + radius, y);
      dots.arc(x, y, radius, 0, 2 * Math.PI);
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
  context.strokeStyle = colors.refused;
  context.stroke(hanging);
  context.lineWidth = view.isLarge ? 1.8 : 1.4;
  context.stroke(crosses);
}
