// The settings in the form and in the URL of the page, so that a reload keeps them and another tab has them.

import { ALGORITHMS } from "./algorithms.js";
import { fillLeases, isLease } from "./lease.js";
import { query } from "./server.js";

/** Fields that are left out if they are off. */
const OPTIONS = ["lease", "shares"];
const FIELDS = ["algorithm", "quotas", "key", "cost", ...OPTIONS];
const byId = (id) => document.getElementById(id);

/** Returns the settings that are not off. */
export function read() {
  const all = FIELDS.map((field) => [field, byId(field).value]);
  return Object.fromEntries(all.filter(([field, value]) => value !== "off" || !OPTIONS.includes(field)));
}

/** Fills the form from the URL. */
export function fill() {
  const options = ALGORITHMS.map(({ id, name }) => new Option(name, id));
  byId("algorithm").replaceChildren(...options);
  fillLeases();
  const isKnown = {
    algorithm: (value) => ALGORITHMS.some(({ id }) => id === value), lease: isLease, shares: (value) => value === "on",
  };
  const query = new URLSearchParams(location.search);
  for (const field of FIELDS) {
    const value = query.get(field);
    if (value !== null && (isKnown[field]?.(value) ?? true)) byId(field).value = value;
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
