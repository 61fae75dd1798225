// How far text stands out of its ground, and what is drawn out of the ground of the charts.
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
for (const name of ["--admitted", "--refused", "--beyond", "--used"]) {
  found[name] = Math.min(contrast(color(name), color("--card")), contrast(color(name), color("--band")));
}
return found;
