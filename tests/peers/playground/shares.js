// The height of each share in the latest part of each chart, in pixels.
const style = getComputedStyle(document.documentElement);
const NAMES = { critical: "--held", batch: "--batch", other: "--within" };
const hex = (bytes) => `#${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
return Object.fromEntries([...document.querySelectorAll(".lane")].map((lane) => {
  const canvas = lane.querySelector("canvas");
  // A copy of the column left of the free space at the edge: Chromium warns of a canvas that is read again and again.
  const copy = new OffscreenCanvas(1, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 14 - canvas.width, 0);
  const { data } = copy.getImageData(0, 0, 1, canvas.height);
  const column = Array.from({ length: canvas.height }, (_, y) => hex(data.slice(4 * y, 4 * y + 3)));
  const height = (color) => column.filter((pixel) => pixel === style.getPropertyValue(color).trim()).length;
  const heights = Object.entries(NAMES).map(([name, color]) => [name, height(color)]);
  return [lane.dataset.algorithm, Object.fromEntries(heights)];
}));
