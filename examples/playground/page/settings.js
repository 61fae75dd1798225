// What is set in the form, and in the address of the page: so a reload keeps it, and another tab has it.

import { ALGORITHMS } from "./algorithms.js";
import { query } from "./server.js";

const FIELDS = ["algorithm", "quotas", "key", "cost"];
const byId = (id) => document.getElementById(id);

export function read() {
  return Object.fromEntries(FIELDS.map((field) => [field, byId(field).value]));
}

/** Fills the form, out of the address as far as that says something. */
export function fill() {
  const options = ALGORITHMS.map(({ id, name }) => new Option(name, id));
  byId("algorithm").replaceChildren(...options);
  const told = new URLSearchParams(location.search);
  for (const field of FIELDS) {
    const value = told.get(field);
    const known = field !== "algorithm" || ALGORITHMS.some(({ id }) => id === value);
    if (value !== null && known) byId(field).value = value;
  }
}

export function keep(settings) {
  const address = `/?${query(settings)}`;
  history.replaceState(null, "", address);
  byId("another").href = address;
}

/** The number in a field; null if it is none that the field takes, which the browser tells. */
export function number(id) {
  const field = byId(id);
  return field.reportValidity() ? field.valueAsNumber : null;
}
