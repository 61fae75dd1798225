// Texts on the page.

/** Sets a text if it has changed. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const number = (value) => value.toLocaleString("en");

/** Formats a time that runs down, in milliseconds. */
export function seconds(ms) {
  if (ms >= 3_600_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  if (ms >= 100_000) return `${Math.ceil(ms / 1_000)} s`;
  return `${(Math.ceil(ms / 100) / 10).toFixed(1)} s`;
}

/** Formats the length of a window in milliseconds: `5 s`. */
export function span(ms) {
  const units = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1_000, "s"], [1, "ms"]];
  const [size, unit] = units.find(([size]) => ms % size === 0) ?? units.at(-1);
  return `${number(ms / size)} ${unit}`;
}

/** Formats a multiple of the limit, rounded up, so that no excess disappears. */
export const multiple = (ratio) => `${number(Math.ceil(100 * ratio - 1e-6) / 100)} ×`;

/** Formats the limits of all quotas: `20 in any 5 s`. */
export const limits = (quotas) =>
  quotas.map(({ limit, window }) => `${number(limit)} in any ${span(window / 1000)}`).join(" and ");
