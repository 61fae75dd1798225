// The desk of an operator: asks the API of this page, and shows what it says.

const EVERY = 5000; // milliseconds between two requests for the lists
const byId = (id) => document.getElementById(id);

// The token stays with this tab, until it is closed or logged out.
const token = {
  get: () => sessionStorage.getItem("token"),
  set: (text) => sessionStorage.setItem("token", text),
  forget: () => sessionStorage.removeItem("token"),
};

class Refused extends Error {
  constructor(status, text) {
    super(text.trim() || `the service answered ${status}`);
    this.status = status;
  }
}

async function ask(path, body) {
  const headers = { authorization: `Bearer ${token.get()}` };
  const options = body === undefined ? { headers } : {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(`/api/limiters${path}`, options);
  } catch {
    throw new Refused(0, "the service does not answer");
  }
  if (answer.ok) return answer.json();
  throw new Refused(answer.status, await answer.text());
}

// The key whose status is shown: the path of its limiter, and the key as it is stored.
let shown = null;
let limiters = [];

function say(text, failed = false) {
  const status = byId("status");
  status.textContent = text;
  status.dataset.failed = failed;
}

function duration(seconds) {
  if (seconds <= 0) return "–";
  if (seconds < 120) return `${Math.ceil(seconds)} s`;
  if (seconds < 7200) return `${Math.ceil(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.ceil(seconds / 3600)} h`;
  return `${Math.ceil(seconds / 86400)} days`;
}

function row(...cells) {
  const row = document.createElement("tr");
  for (const cell of cells) row.insertCell().append(cell);
  return row;
}

function empty(columns, text) {
  const nothing = row(text);
  nothing.className = "empty";
  nothing.cells[0].colSpan = columns;
  return nothing;
}

function lookAt(key) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = "Look";
  button.setAttribute("aria-label", `Look at ${key}`);
  button.addEventListener("click", () => attempt(() => peek({ kind: "stored", value: key })));
  return button;
}

const limiterPath = () => `/${encodeURIComponent(byId("limiter").value)}`;

// Whether an answer is still of use: none is once there was another limiter, or a log-out.
const isAt = (limiter) => !byId("desk").hidden && limiterPath() === limiter;

function show(limiter, keyStatus) {
  shown = { limiter, key: keyStatus.key };
  byId("key").textContent = keyStatus.key;
  const blocked = keyStatus.blocked_seconds;
  const line = byId("blocked-for");
  line.dataset.blocked = blocked !== null;
  line.textContent = blocked === null ? "Not blocked." : `Blocked for ${duration(blocked)}.`;
  if (keyStatus.source === "Fallback") line.textContent += " The store fails: these are the counts of this process.";
  byId("quota-rows").replaceChildren(...keyStatus.quotas.map((quota) =>
    row(quota.quota, quota.used, quota.remaining, duration(quota.returns_in_seconds))));
  byId("key-status").hidden = false;
}

async function peek(key) {
  const limiter = limiterPath();
  const keyStatus = await ask(`${limiter}/peek`, { key });
  if (!isAt(limiter)) return;
  show(limiter, keyStatus);
  say("");
}

async function change(order, done) {
  const { limiter, key } = shown;
  const keyStatus = await ask(`${limiter}/change`, { key: { kind: "stored", value: key }, ...order });
  if (!isAt(limiter)) return;
  show(limiter, keyStatus);
  say(done);
  await lists();
}

// The lists are not changed under the fingers of who goes through them.
const isInLists = () => document.querySelector(".lists").contains(document.activeElement);

async function lists() {
  const limiter = limiterPath();
  const told = await ask(limiter);
  if (!isAt(limiter)) return;
  const blocked = told.blocked.map(({ key, seconds }) => row(key, duration(seconds), lookAt(key)));
  byId("blocked-rows").replaceChildren(...(blocked.length ? blocked : [empty(3, "none")]));
  const busiest = told.busiest.map(({ key, refused, error }) =>
    row(key, error ? `${refused - error} to ${refused}` : refused, lookAt(key)));
  byId("busiest-rows").replaceChildren(...(busiest.length ? busiest : [empty(3, "none")]));
}

// Does it, and says what went wrong.
async function attempt(what) {
  try {
    await what();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (error.status === 401) logOut("The token is not accepted.");
    else if (byId("desk").hidden) byId("login-error").textContent = error.message;
    else say(error.message, true);
  }
}

// Nothing of one limiter stays under the next, and nothing at all behind a log-out.
function clear() {
  shown = null;
  byId("key-status").hidden = true;
  for (const id of ["key", "blocked-for", "quotas", "status"]) byId(id).textContent = "";
  for (const id of ["quota-rows", "blocked-rows", "busiest-rows"]) byId(id).replaceChildren();
}

function chooseLimiter() {
  const limiter = limiters.find(({ name }) => name === byId("limiter").value);
  clear();
  byId("quotas").textContent = `Allows ${limiter.quotas.join(", ") || "everything"}.`;
  return attempt(lists);
}

const HINTS = { address: "127.0.0.1", header: "the value that was sent", text: "ada", stored: "ip=127.0.0.1" };

function chooseKind() {
  const kind = byId("kind").value;
  byId("header-field").hidden = kind !== "header";
  byId("header").required = kind === "header";
  byId("value").placeholder = HINTS[kind];
}

async function logIn() {
  limiters = await ask("");
  byId("limiter").replaceChildren(...limiters.map(({ name }) => new Option(name, name)));
  byId("login").hidden = true;
  byId("desk").hidden = false;
  byId("log-out").hidden = false;
  byId("token").value = "";
  byId("login-error").textContent = "";
  byId("value").focus();
  await chooseLimiter();
}

function logOut(why = "") {
  token.forget();
  byId("desk").hidden = true;
  byId("log-out").hidden = true;
  clear();
  limiters = [];
  byId("limiter").replaceChildren();
  byId("look").reset();
  chooseKind();
  byId("login").hidden = false;
  byId("login-error").textContent = why;
  byId("token").focus();
}

function on(id, event, what) {
  byId(id).addEventListener(event, (happened) => {
    happened.preventDefault();
    attempt(what);
  });
}

on("login-form", "submit", () => {
  token.set(byId("token").value.trim());
  return logIn();
});
on("log-out", "click", () => logOut());
on("limiter", "change", chooseLimiter);
on("kind", "change", chooseKind);
on("look", "submit", () => {
  const [kind, value] = [byId("kind").value, byId("value").value.trim()];
  return peek(kind === "header" ? { kind, name: byId("header").value.trim(), value } : { kind, value });
});
on("reset", "click", () => change({ do: "reset" }, "Reset: nothing is charged."));
on("credit", "submit", () => {
  const units = byId("units").valueAsNumber;
  return change({ do: "credit", units }, `Credited ${units} units.`);
});
on("block", "submit", () => {
  const seconds = byId("time").valueAsNumber * Number(byId("unit").value);
  return change({ do: "block", seconds }, `Blocked for ${duration(seconds)}.`);
});
on("unblock", "click", () => change({ do: "unblock" }, "Unblocked."));

chooseKind();
if (token.get()) attempt(logIn);
setInterval(() => {
  if (!byId("desk").hidden && !document.hidden && !isInLists()) attempt(lists);
}, EVERY);
