// The settings in the form and in the URL of the page, so that a reload keeps them and another tab has them.

import { ALGORITHMS } from "./algorithms.js";
import { fillLeases, isLease } from "./lease.js";
import { query } from "./server.js";

const FIELDS = ["algorithm", "quotas", "key", "cost", "lease"];
const byId = (id) => document.getElementById(id);

/** Returns the settings. Without a lease, there is none among them. */
export function read() {
  const all = Object.fromEntries(FIELDS.map((field) => [field, byId(field).value]));
  const { lease, ...others } = all;
  return lease === "off" ? others : all;
}

/** Fills the form from the URL. */
export function fill() {
  const options = ALGORITHMS.map(({ id, name }) => new Option(name, id));
  byId("algorithm").replaceChildren(...options);
  fillLeases();
  const isKnown = { algorithm: (value) => ALGORITHMS.some(({ id }) => id === value), lease: isLease };
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
