// The settings in the form and in the URL of the page, so that a reload keeps them and another tab has them.

import { ALGORITHMS } from "./algorithms.js";
import { query } from "./server.js";

const FIELDS = ["algorithm", "quotas", "key", "cost"];
const byId = (id) => document.getElementById(id);

export function read() {
  return Object.fromEntries(FIELDS.map((field) => [field, byId(field).value]));
}

/** Fills the form from the URL. */
export function fill() {
  const options = ALGORITHMS.map(({ id, name }) => new Option(name, id));
  byId("algorithm").replaceChildren(...options);
  const query = new URLSearchParams(location.search);
  for (const field of FIELDS) {
    const value = query.get(field);
    const known = field !== "algorithm" || ALGORITHMS.some(({ id }) => id === value);
    if (value !== null && known) byId(field).value = value;
  }
}

export function keep(settings) {
  const address = `/?${query(settings)}`;
  history.replaceState(null, "", address);
  byId("another").href = address;
}

/** Returns the number in a field, or null if it is invalid. The browser then shows why. */
export function number(id) {
  const field = byId(id);
  return field.reportValidity() ? field.valueAsNumber : null;
}
