// How many pixels of a chart have the color of held units, without and with them; see chart.js.
const done = arguments[arguments.length - 1];
Promise.all([import("/chart.js"), import("/history.js")]).then(([{ Chart, palette }, { History }]) => {
  const canvas = document.createElement("canvas");
  canvas.style.cssText = "width: 600px; height: 190px; position: fixed";
  document.body.append(canvas);
  // Before the chart gets its context, which is the same.
  const context = canvas.getContext("2d", { willReadFrequently: true });
  // In one color of its own, so that no other part of the chart is counted.
  const colors = { ...palette(), held: "rgb(1, 200, 3)" };
  const drawn = (held) => {
    const history = new History([{ limit: 100, window: 10_000_000 }], 20_000, 1);
    history.advance(5_000);
    const lane = { used: [40], held, sent: 1, used_here: 40, remaining: 60, source: "Redis" };
    history.record({ now: 5_000_000, cost: 1, requests: [], lanes: [lane] });
    history.advance(15_000);
    const chart = new Chart(canvas);
    chart.draw(history, history.lanes[0], { now: 15_000, top: 1.2, isLarge: true, edges: [] }, colors);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
      if (data[at] < 40 && data[at + 1] > 160 && data[at + 2] < 40 && data[at + 3] > 200) count += 1;
    }
    return count;
  };
  const result = { without: drawn(0), held: drawn(30) };
  canvas.remove();
  done(result);
});
