// Requests to the server. The settings are in the query, so that the same request works in a terminal.

/** Whether the page is a recording, with `recorded.js` in place of this file. */
export const isRecorded = false;

/** The time in milliseconds. */
export const clock = () => performance.now();

/** The server rejected a field. */
export class Invalid extends Error {
  constructor({ field, why }) {
    super(why);
    this.field = field;
  }
}

/** The server is unreachable, or a response was cut off. */
export class Unreachable extends Error {}

/** Formats a query. Slashes and commas stay readable. */
export const query = (fields) => `${new URLSearchParams(fields)}`.replaceAll("%2F", "/").replaceAll("%2C", ",");

async function ask(method, path, fields) {
  const response = await received(fetch(`${path}?${query(fields)}`, { method, cache: "no-store" }));
  if (response.status === 400) throw new Invalid(await json(response));
  if (!response.ok) throw new Error(`${response.status}: ${await received(response.text())}`);
  return response;
}

/** Browsers report network failures as TypeError. This separates them from errors of this page. */
async function received(answer) {
  try {
    return await answer;
  } catch (error) {
    throw new Unreachable("no response", { cause: error });
  }
}

/** Parses the JSON of a response. */
const json = async (response) => JSON.parse(await received(response.text()));

/** Returns the current counts without sending a request. */
export async function peek(settings) {
  const report = await json(await ask("GET", "/peek", settings));
  if (report.invalid) throw new Invalid(report.invalid);
  return report;
}

/** Sends one request. */
export const send = async (settings) => json(await ask("POST", "/send", settings));

/** The command that sends the same request in a terminal. */
export const command = (settings) =>
  `curl -i -X POST '${location.origin}/request?${query(settings)}'`;

/** Requests that the server sends on its own, starting now. */
export class Stream {
  #id = crypto.randomUUID();
  #begun;

  /** Requests at a steady rate. Calls `seen` with each report. */
  static steady = (settings, pace, seen) => new Stream("/stream", { ...settings, ...pace }, seen);

  /** A burst across the next edge of fixed windows. The first report is when the edge comes. */
  static acrossEdge = (settings, seen) => new Stream("/edge", settings, seen);

  constructor(path, fields, seen) {
    this.settings = fields;
    this.#begun = ask("POST", path, { ...fields, id: this.#id });
    /** Resolves at the end of the stream to the server's counts. */
    this.counted = this.#begun.then((response) => follow(response.body, seen));
  }

  /** Stops the stream. Requests sent before are still reported. */
  async stop() {
    // Otherwise this request could arrive before the stream has started.
    await this.#begun;
    await ask("POST", "/stream/stop", { id: this.#id });
  }
}

async function follow(body, seen) {
  let done;
  for await (const line of lines(body)) {
    const report = JSON.parse(line);
    if (report.done) done = report.done;
    else seen(report);
  }
  if (!done) throw new Unreachable("the stream was cut off");
  return done;
}

/** Resets the counts of the key. Resolves to the cause of a failure, or to null. */
export const reset = async (settings) => (await json(await ask("POST", "/reset", settings))).failure;

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await received(reader.read());
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}
