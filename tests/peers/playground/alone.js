// How many pixels of a chart have the color of exact units, of units above the limit, and of this process alone, when
// twice the limit was admitted by Redis or by the process alone; see chart.js.
const done = arguments[arguments.length - 1];
Promise.all([import("/chart.js"), import("/history.js")]).then(([{ Chart, palette }, { History }]) => {
  const canvas = document.createElement("canvas");
  canvas.style.cssText = "width: 600px; height: 190px; position: fixed";
  document.body.append(canvas);
  // Before the chart gets its context, which is the same.
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const parts = { within: [0, 0, 255], beyond: [255, 0, 0], alone: [0, 255, 0] };
  const own = Object.entries(parts).map(([name, color]) => [name, `rgb(${color.join()})`]);
  const colors = { ...palette(), ...Object.fromEntries(own) };
  const drawn = (source) => {
    const history = new History([{ limit: 20, window: 10_000_000 }], 20_000, 1);
    history.advance(5_000);
    const bits = source === "Fallback" ? 1 : 0;
    const requests = Array.from({ length: 40 }, () => [5_000_000, 0, 1, 0, bits]);
    const lane = { used: [20], held: 0, sent: 1, used_here: 20, remaining: 0, source };
    history.record({ now: 5_000_000, cost: 1, requests, lanes: [lane] });
    history.advance(12_000);
    const chart = new Chart(canvas);
    chart.draw(history, history.lanes[0], { now: 12_000, top: 2.2, isLarge: true, edges: [], change: null }, colors);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    const counts = { within: 0, beyond: 0, alone: 0 };
    for (let at = 0; at < data.length; at += 4) {
      for (const [name, color] of Object.entries(parts)) {
        counts[name] += color.every((part, i) => Math.abs(part - data[at + i]) < 40) && data[at + 3] > 200;
      }
    }
    return counts;
  };
  const result = { Redis: drawn("Redis"), Fallback: drawn("Fallback") };
  canvas.remove();
  done(result);
});
