// Sends the operator's requests to the API of this page and shows the results.

const REFRESH_LISTS = 5000; // milliseconds
const byId = (id) => document.getElementById(id);

// The token is kept in this tab until the tab is closed or the operator logs out.
const token = {
  get: () => sessionStorage.getItem("token"),
  set: (text) => sessionStorage.setItem("token", text),
  remove: () => sessionStorage.removeItem("token"),
};

class RequestFailed extends Error {
  constructor(status, text) {
    super(text.trim() || `The service responded with status ${status}.`);
    this.status = status;
  }
}

async function request(path, body) {
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
    throw new RequestFailed(0, "The service does not respond.");
  }
  if (answer.ok) return answer.json();
  throw new RequestFailed(answer.status, await answer.text());
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

function lookUpButton(key) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = "Look up";
  button.setAttribute("aria-label", `Look up ${key}`);
  button.addEventListener("click", () => attempt(() => peek({ kind: "stored", value: key })));
  return button;
}

const limiterPath = () => `/${encodeURIComponent(byId("limiter").value)}`;

// Responses for another limiter, or after logging out, are ignored.
const isCurrent = (limiter) => !byId("desk").hidden && limiterPath() === limiter;

function show(limiter, keyStatus) {
  shown = { limiter, key: keyStatus.key };
  byId("key").textContent = keyStatus.key;
  const blocked = keyStatus.blocked_seconds;
  const line = byId("blocked-for");
  line.dataset.blocked = blocked !== null;
  line.textContent = blocked === null ? "Not blocked." : `Blocked for ${duration(blocked)}.`;
  if (keyStatus.source === "Fallback") line.textContent += " The store is unreachable: these are the counts of this process.";
  byId("quota-rows").replaceChildren(...keyStatus.quotas.map((quota) =>
    row(quota.quota, quota.used, quota.remaining, duration(quota.returns_in_seconds))));
  byId("key-status").hidden = false;
}

async function peek(key) {
  const limiter = limiterPath();
  const keyStatus = await request(`${limiter}/peek`, { key });
  if (!isCurrent(limiter)) return;
  show(limiter, keyStatus);
  say("");
}

async function change(edit, done) {
  const { limiter, key } = shown;
  const keyStatus = await request(`${limiter}/change`, { key: { kind: "stored", value: key }, ...edit });
  if (!isCurrent(limiter)) return;
  show(limiter, keyStatus);
  say(done);
  await lists();
}

// The lists do not refresh while one of their buttons has the focus.
const isInLists = () => document.querySelector(".lists").contains(document.activeElement);

async function lists() {
  const limiter = limiterPath();
  const overview = await request(limiter);
  if (!isCurrent(limiter)) return;
  const blocked = overview.blocked.map(({ key, seconds }) => row(key, duration(seconds), lookUpButton(key)));
  byId("blocked-rows").replaceChildren(...(blocked.length ? blocked : [empty(3, "none")]));
  const busiest = overview.busiest.map(({ key, refused, error }) =>
    row(key, error ? `${refused - error} to ${refused}` : refused, lookUpButton(key)));
  byId("busiest-rows").replaceChildren(...(busiest.length ? busiest : [empty(3, "none")]));
}

// Runs an action and shows its error.
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    if (!(error instanceof RequestFailed)) throw error;
    if (error.status === 401) logOut("Wrong token.");
    else if (byId("desk").hidden) byId("login-error").textContent = error.message;
    else say(error.message, true);
  }
}

// Removes everything that belongs to the previous limiter or login.
function clear() {
  shown = null;
  byId("key-status").hidden = true;
  for (const id of ["key", "blocked-for", "quotas", "status"]) byId(id).textContent = "";
  for (const id of ["quota-rows", "blocked-rows", "busiest-rows"]) byId(id).replaceChildren();
}

function chooseLimiter() {
  const limiter = limiters.find(({ name }) => name === byId("limiter").value);
  clear();
  byId("quotas").textContent = `Quotas: ${limiter.quotas.join(", ") || "none"}`;
  return attempt(lists);
}

const HINTS = { address: "127.0.0.1", header: "the header value", text: "ada", stored: "ip=127.0.0.1" };

function chooseKind() {
  const kind = byId("kind").value;
  byId("header-field").hidden = kind !== "header";
  byId("header").required = kind === "header";
  byId("value").placeholder = HINTS[kind];
}

async function logIn() {
  limiters = await request("");
  byId("limiter").replaceChildren(...limiters.map(({ name }) => new Option(name, name)));
  byId("login").hidden = true;
  byId("desk").hidden = false;
  byId("log-out").hidden = false;
  byId("token").value = "";
  byId("login-error").textContent = "";
  byId("value").focus();
  await chooseLimiter();
}

function logOut(reason = "") {
  token.remove();
  byId("desk").hidden = true;
  byId("log-out").hidden = true;
  clear();
  limiters = [];
  byId("limiter").replaceChildren();
  byId("look").reset();
  chooseKind();
  byId("login").hidden = false;
  byId("login-error").textContent = reason;
  byId("token").focus();
}

function on(id, type, action) {
  byId(id).addEventListener(type, (event) => {
    event.preventDefault();
    attempt(action);
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
on("reset", "click", () => change({ do: "reset" }, "Reset. The key has used 0 units."));
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
}, REFRESH_LISTS);
