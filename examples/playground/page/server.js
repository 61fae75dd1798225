// What the server is asked. Settings travel in the query, so the same works from a terminal.

/** A field that the server cannot use. */
export class Invalid extends Error {
  constructor({ field, why }) {
    super(why);
    this.field = field;
  }
}

/** Nobody answers, or not to the end. */
export class Unreachable extends Error {}

/** As text that people read: what may stand in a query as it is, does. */
export const query = (fields) => `${new URLSearchParams(fields)}`.replaceAll("%2F", "/").replaceAll("%2C", ",");

async function ask(method, path, fields) {
  const response = await heard(fetch(`${path}?${query(fields)}`, { method, cache: "no-store" }));
  if (response.status === 400) throw new Invalid(await told(response));
  if (!response.ok) throw new Error(`${response.status}: ${await heard(response.text())}`);
  return response;
}

/** Tells failures of the network, which browsers report as a TypeError, from those of this page. */
async function heard(answer) {
  try {
    return await answer;
  } catch (error) {
    throw new Unreachable("nobody answers", { cause: error });
  }
}

/** The JSON of an answer. */
const told = async (response) => JSON.parse(await heard(response.text()));

/** How things stand, without a request. */
export async function peek(settings) {
  const report = await told(await ask("GET", "/peek", settings));
  if (report.invalid) throw new Invalid(report.invalid);
  return report;
}

/** Sends one request. */
export const send = async (settings) => told(await ask("POST", "/send", settings));

/** The same from a terminal. */
export const command = (settings) =>
  `curl -i -X POST '${location.origin}/request?${query(settings)}'`;

/** Requests that the server sends at a steady rate, beginning now. */
export class Stream {
  #id = crypto.randomUUID();
  #begun;

  /** Calls `seen` with each report. */
  constructor(settings, pace, seen) {
    this.#begun = ask("POST", "/stream", { ...settings, ...pace, id: this.#id });
    /** What the server counted, once it has ended. */
    this.counted = this.#begun.then((response) => follow(response.body, seen));
  }

  /** Has it end; what was sent until then is still reported. */
  async stop() {
    // A request on another connection could be there first, and stop nothing.
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
  if (!done) throw new Unreachable("the stream was cut");
  return done;
}

/** Forgets what is charged to the key. Resolves to why it could not be; null if it was. */
export const reset = async (settings) => (await told(await ask("POST", "/reset", settings))).failure;

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await heard(reader.read());
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}
