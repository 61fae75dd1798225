// Ten requests in each of ten bins, reported when half a second more was drawn; see history.js.
const done = arguments[arguments.length - 1];
import("/history.js").then(({ History }) => {
  const history = new History([{ limit: 1_000, window: 10_000_000 }], 20_000, 1);
  const [lane] = history.lanes;
  const units = (bin) => Math.round(1_000 * lane.trailing[history.slot(bin)]);
  history.advance(5_500);
  const requests = Array.from({ length: 100 }, (_, i) => [4_005_000 + 10_000 * i, 0, 1]);
  history.record({ now: 5_000_000, cost: 1, requests, lanes: [null] });
  const charged = Array.from({ length: 10 }, (_, i) => units(40 + i));
  history.advance(20_000);
  done({ charged, returned: [139, 141, 142, 150].map(units) });
});
