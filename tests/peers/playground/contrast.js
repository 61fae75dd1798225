// How far text stands out of its ground, and what is drawn out of the ground of the charts.
const done = arguments[arguments.length - 1];
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

function luminance(color) {
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

function ground(element) {
  const color = getComputedStyle(element).backgroundColor;
  return color === "rgba(0, 0, 0, 0)" ? ground(element.parentElement) : color;
}

const found = {};
for (const element of document.querySelectorAll("body *")) {
  const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (says && element.checkVisibility()) {
    const value = contrast(getComputedStyle(element).color, ground(element));
    const name = `${element.tagName} ${element.id} ${element.className}`;
    found[name] = Math.min(found[name] ?? Infinity, value);
  }
}
const style = getComputedStyle(document.documentElement);
const color = (name) => style.getPropertyValue(name).trim();
const onGround = (name) => Math.min(contrast(name, color("--card")), contrast(name, color("--band")));
for (const name of ["--admitted", "--refused", "--beyond", "--used", "--held", "--batch"]) found[name] = onGround(color(name));
// What is drawn over the area of the trailing window, and around it.
for (const name of ["--admitted", "--used"]) found[`${name} within`] = contrast(color(name), color("--within"));

/**
 * The outline of that area, as it is drawn: in each column what stands out most, and of the columns what three in
 * four reach. The others may be at a side of the area, where the line and the area blend in one pixel, or below a
 * dash of another line.
 */
function outline() {
  const lane = document.querySelector("#lanes canvas");
  const { width, height } = lane;
  const copy = Object.assign(document.createElement("canvas"), { width, height });
  const read = copy.getContext("2d", { willReadFrequently: true });
  // The ground of the element shows through.
  read.fillStyle = color("--card");
  read.fillRect(0, 0, width, height);
  read.drawImage(lane, 0, 0);
  const { data } = read.getImageData(0, 0, width, height);
  const at = (x, y) => `rgb(${data.slice(4 * (y * width + x), 4 * (y * width + x) + 3).join()})`;
  canvas.fillStyle = color("--within");
  canvas.fillRect(0, 0, 1, 1);
  const within = `rgb(${canvas.getImageData(0, 0, 1, 1).data.slice(0, 3).join()})`;
  const columns = [];
  for (let x = 0; x < width; x++) {
    let top = 0;
    while (top < height && at(x, top) !== within) top += 1;
    if (top < height) columns.push(Math.max(...[1, 2, 3].map((above) => onGround(at(x, top - above)))));
  }
  // In a narrower area, too many columns are at its sides.
  return columns.length < 40 ? null : columns.sort((a, b) => a - b)[Math.floor(columns.length / 4)];
}

function wait() {
  const worst = outline();
  if (worst === null) requestAnimationFrame(wait);
  else done({ ...found, "--within outline": worst });
}
// Two frames later it is drawn in the colors that were just set.
requestAnimationFrame(() => requestAnimationFrame(wait));
