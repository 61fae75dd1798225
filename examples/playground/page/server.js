// What the server is asked. Settings travel in the query, so the same works from a terminal.

/** A field that the server cannot use. */
export class Invalid extends Error {
  constructor({ field, why }) {
    super(why);
    this.field = field;
  }
}

/** As text that people read: what may stand in a query as it is, does. */
export const query = (fields) => `${new URLSearchParams(fields)}`.replaceAll("%2F", "/").replaceAll("%2C", ",");

async function ask(method, path, fields) {
  const response = await fetch(`${path}?${query(fields)}`, { method, cache: "no-store" });
  if (response.status === 400) throw new Invalid(await response.json());
  if (!response.ok) throw new Error(await response.text());
  return response;
}

/** How things stand, without a request. */
export async function look(settings) {
  const report = await (await ask("GET", "/look", settings)).json();
  if (report.invalid) throw new Invalid(report.invalid);
  return report;
}

/** Sends one request. */
export const send = async (settings) => (await ask("POST", "/send", settings)).json();

/** The same from a terminal. */
export const command = (settings) =>
  `curl -i -X POST '${location.origin}/request?${query(settings)}'`;

/**
 * Has the server send requests at a steady rate. Calls `seen` with each report, and resolves to what the
 * server counted.
 */
export async function stream(settings, pace, id, seen) {
  const response = await ask("POST", "/stream", { ...settings, ...pace, id });
  let done;
  for await (const line of lines(response.body)) {
    const report = JSON.parse(line);
    if (report.done) done = report.done;
    else seen(report);
  }
  if (!done) throw new Error("the server ended the stream");
  return done;
}

/** Ends a stream; what was sent until then is still reported. */
export const stop = (id) => ask("POST", "/stream/stop", { id });

/** Forgets what is charged to the key. */
export const reset = (settings) => ask("POST", "/reset", settings);

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}
