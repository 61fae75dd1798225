// The setting of the lease: which durations the limit and the store allow.

import { LEASES } from "./leases.js";
import { write } from "./text.js";

const byId = (id) => document.getElementById(id);

const HINT = "Acts on a key with 16 requests in this time";

/** Lists the durations. */
export function fillLeases() {
  byId("lease").replaceChildren(...LEASES.map(({ id }) => new Option(id.replace(/(m?s)$/, " $1"), id)));
}

export const isLease = (id) => LEASES.some((lease) => lease.id === id);

/** Whether a lease is selected and has an effect. */
export const isLeased = () => !byId("lease").disabled && byId("lease").value !== "off";

/** `off`: why leases have no effect, or null; `longest`: the longest lease of the quotas, in microseconds. */
export function showLease({ off, longest }) {
  const select = byId("lease");
  select.disabled = off !== null;
  [...select.options].forEach((option, i) => {
    option.disabled = LEASES[i].micros > longest;
  });
  const isCut = LEASES[select.selectedIndex].micros > longest;
  const cut = `Cut to ${longest / 1000} ms, a tenth of the shortest window`;
  write(byId("lease-hint"), off ?? (isCut ? cut : HINT));
}
