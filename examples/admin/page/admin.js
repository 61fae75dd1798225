// Sends the operator's requests to the API of this page and shows the results.

const REFRESH = 2000; // milliseconds between two updates
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

let limiters = [];
// The key whose status is shown: the path of its limiter, how the operator named it, and its status.
let shown = null;
// What the latest look-up asked for. Answers to earlier ones are ignored.
let asked = null;
// The page of the list of blocked keys, from 0.
let page = 0;
let isLive = true;

// Text from the service is only ever set as text, never as HTML.
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function say(text, failed = false) {
  const status = byId("status");
  put(status, text);
  status.dataset.failed = failed;
}

function duration(seconds) {
  if (seconds <= 0) return "–";
  if (seconds < 120) return `${Math.ceil(seconds)} s`;
  if (seconds < 7200) return `${Math.ceil(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.ceil(seconds / 3600)} h`;
  return `${Math.ceil(seconds / 86400)} days`;
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

// Shows rows, each a key and texts. Rows that are there already are kept, so that a button keeps the focus.
function showRows(id, rows, columns) {
  const body = byId(id);
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const wanted = rows.map(({ key, texts, button }) => {
    let row = known.get(key);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.key = key;
      for (let column = 0; column < columns; column += 1) row.insertCell();
      if (button) row.insertCell().append(lookUpButton(key));
    }
    texts.forEach((text, column) => put(row.cells[column], String(text)));
    return row;
  });
  if (!wanted.length) wanted.push(emptyRow(columns + 1));
  if (wanted.some((row, index) => body.rows[index] !== row) || body.rows.length !== wanted.length) {
    body.replaceChildren(...wanted);
    if (focused && focused.isConnected) focused.focus({ preventScroll: true });
  }
}

function emptyRow(columns) {
  const row = document.createElement("tr");
  row.className = "empty";
  const cell = row.insertCell();
  cell.textContent = "none";
  cell.colSpan = columns;
  return row;
}

const limiterPath = () => `/${encodeURIComponent(byId("limiter").value)}`;

// Responses for another limiter, or after logging out, are ignored.
const isCurrent = (limiter) => !byId("desk").hidden && limiterPath() === limiter;

const isUnused = (keyStatus) => keyStatus.quotas.every(({ used }) => used === 0);

function show(limiter, input, keyStatus) {
  shown = { limiter, input, keyStatus };
  put(byId("key"), keyStatus.key);
  const blocked = keyStatus.blocked_seconds;
  const line = byId("blocked-for");
  line.dataset.blocked = blocked !== null;
  const texts = [blocked === null ? "Not blocked." : `Blocked for ${duration(blocked)}.`];
  if (keyStatus.source === "Fallback") texts.push("The store is unreachable: these are the counts of this process.");
  put(line, texts.join(" "));
  byId("unused").hidden = blocked !== null || !isUnused(keyStatus);
  showRows("quota-rows", keyStatus.quotas.map((quota) => ({
    key: quota.quota,
    texts: [quota.quota, quota.used, quota.remaining, duration(quota.returns_in_seconds)],
  })), 4);
  byId("holders").hidden = !keyStatus.holders.length;
  showRows("holder-rows", keyStatus.holders.map(({ holder, slots, lease_left_seconds: left, is_this_process: isOwn }) => ({
    key: holder,
    texts: [isOwn ? "this process" : holder.slice(0, 8), slots, duration(left)],
  })), 3);
  byId("key-status").hidden = false;
}

// Hides the key first: if the look-up fails, no button may change the key of the look-up before.
async function peek(key) {
  const limiter = limiterPath();
  hideKey();
  asked = key;
  say("");
  const keyStatus = await request(`${limiter}/peek`, { key });
  if (asked === key) show(limiter, key, keyStatus);
}

function hideKey() {
  shown = null;
  asked = null;
  byId("key-status").hidden = true;
}

async function change(edit, done) {
  const { limiter, input, keyStatus: before } = shown;
  const keyStatus = await request(`${limiter}/change`, { key: input, ...edit });
  if (asked !== input) return;
  show(limiter, input, keyStatus);
  const isUnknown = edit.do === "block" && isUnused(before);
  say(isUnknown ? `${done} No request of this key counts now, so check the value.` : done);
  await update();
}

function showBlocked({ total, found, page: at, pages, first, rows }) {
  page = at;
  showRows("blocked-rows", rows.map(({ key, seconds, reason }) => ({
    key,
    texts: [key, duration(seconds), reason],
    button: true,
  })), 3);
  const number = (value) => value.toLocaleString("en");
  const of = found === total ? number(total) : `${number(found)} found, of ${number(total)}`;
  put(byId("blocked-count"), found ? `${number(first)} to ${number(first + rows.length - 1)} of ${of}` : of);
  byId("pager").hidden = total === 0;
  byId("previous").disabled = at === 0;
  byId("next").disabled = at + 1 >= pages;
}

function showTopRejected(keys) {
  showRows("top-rejected-rows", keys.map(({ key, refused, error }) => ({
    key,
    texts: [key, error ? `${refused - error} to ${refused}` : refused],
    button: true,
  })), 2);
}

// Only the latest update is shown.
let updates = 0;

// Fetches all that changes: the key that is looked at, and the lists.
async function update() {
  const limiter = limiterPath();
  updates += 1;
  const number = updates;
  const input = shown?.input;
  const blocked = { search: byId("search").value, page };
  const view = await request(`${limiter}/view`, { blocked, key: input });
  if (!isCurrent(limiter) || number !== updates) return;
  showBlocked(view.blocked);
  showTopRejected(view.top_rejected);
  if (view.key && shown?.input === input) show(limiter, input, view.key);
  put(byId("updated"), `Updated at ${new Date().toLocaleTimeString("en-GB")}.`);
  byId("updated").dataset.failed = false;
}

const turn = (by) => {
  page = Math.max(0, page + by);
  return update();
};

// Runs an action and shows its error.
async function attempt(action, sayFailed = (text) => say(text, true)) {
  try {
    await action();
  } catch (error) {
    if (!(error instanceof RequestFailed)) throw error;
    if (error.status === 401) logOut("Wrong token.");
    else if (byId("desk").hidden) byId("login-error").textContent = error.message;
    else sayFailed(error.message);
  }
}

// While the tab is hidden or the operator has paused, nothing is fetched.
let timer;
async function live() {
  clearTimeout(timer);
  if (isLive && !document.hidden && !byId("desk").hidden) {
    await attempt(update, (text) => {
      put(byId("updated"), `Not updated: ${text}`);
      byId("updated").dataset.failed = true;
    });
  }
  clearTimeout(timer);
  timer = setTimeout(live, REFRESH);
}

// Asks before something that cannot be undone, or that refuses all requests of a key.
function confirmed(text, button) {
  const dialog = byId("confirm");
  put(byId("confirm-text"), text);
  put(byId("confirm-yes"), button);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

// Removes everything that belongs to the previous limiter or login.
function clear() {
  hideKey();
  page = 0;
  updates += 1;
  byId("pager").hidden = true;
  byId("search").value = "";
  if (byId("confirm").open) byId("confirm").close();
  for (const id of ["key", "blocked-for", "blocked-count", "quotas", "status", "updated"]) byId(id).textContent = "";
  for (const id of ["quota-rows", "blocked-rows", "top-rejected-rows"]) byId(id).replaceChildren();
}

const chosenLimiter = () => limiters.find(({ name }) => name === byId("limiter").value);
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const STORED = "stored";

function chooseLimiter() {
  const { quotas, forms } = chosenLimiter();
  clear();
  byId("quotas").textContent = `Quotas: ${quotas.join(", ") || "none"}`;
  const kinds = forms.map((fields, index) => {
    const labels = fields.map(({ label }) => label);
    return new Option(labels.join(" and ") || "all requests together", index);
  });
  byId("kind").replaceChildren(...kinds, new Option("stored key, as in a log", STORED));
  chooseKind();
  return attempt(update);
}

// Asks for what the extractor of the limiter takes.
function chooseKind() {
  const form = chosenLimiter()?.forms[byId("kind").value];
  const fields = form ?? [{ label: "Stored key", example: "as this page or a log shows it" }];
  byId("values").replaceChildren(...fields.map(({ label, example }, index) => {
    const field = document.createElement("div");
    field.className = "field grows";
    const name = document.createElement("label");
    const input = document.createElement("input");
    input.id = index ? `value-${index}` : "value";
    name.htmlFor = input.id;
    name.textContent = sentence(label);
    input.required = true;
    input.autocomplete = "off";
    input.spellcheck = false;
    input.placeholder = form ? `for example ${example}` : example;
    field.append(name, input);
    return field;
  }));
}

function keyInput() {
  const values = [...byId("values").querySelectorAll("input")].map(({ value }) => value);
  const kind = byId("kind").value;
  return kind === STORED ? { kind, value: values[0] } : { kind: "entered", form: Number(kind), values };
}

async function logIn() {
  limiters = await request("");
  byId("limiter").replaceChildren(...limiters.map(({ name }) => new Option(name, name)));
  byId("login").hidden = true;
  byId("desk").hidden = false;
  byId("log-out").hidden = false;
  byId("token").value = "";
  byId("login-error").textContent = "";
  const chosen = chooseLimiter();
  (byId("value") ?? byId("limiter")).focus();
  await chosen;
}

function logOut(reason = "") {
  token.remove();
  byId("desk").hidden = true;
  byId("log-out").hidden = true;
  clear();
  limiters = [];
  for (const id of ["limiter", "kind", "values"]) byId(id).replaceChildren();
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
on("look", "submit", () => peek(keyInput()));
on("reset", "click", async () => {
  const { key } = shown.keyStatus;
  const text = `Reset the usage of ${key}? It has its whole quotas again, and its counts cannot be restored.`;
  if (await confirmed(text, "Reset usage")) await change({ do: "reset" }, "Reset. The key has used 0 units.");
});
on("credit", "submit", () => {
  const units = byId("units").valueAsNumber;
  return change({ do: "credit", units }, `Credited ${units} units.`);
});
on("block", "submit", async () => {
  const { key } = shown.keyStatus;
  const seconds = byId("time").valueAsNumber * Number(byId("unit").value);
  const time = duration(seconds);
  const text = `Block ${key} for ${time}? All its requests are refused until then, in all processes.`;
  if (await confirmed(text, "Block")) await change({ do: "block", seconds }, `Blocked for ${time}.`);
});
on("unblock", "click", () => change({ do: "unblock" }, "Unblocked."));
on("previous", "click", () => turn(-1));
on("next", "click", () => turn(1));
on("pause", "click", () => {
  isLive = !isLive;
  byId("pause").textContent = isLive ? "Pause updates" : "Resume updates";
  return live();
});
on("confirm-yes", "click", () => byId("confirm").close("yes"));
on("confirm-no", "click", () => byId("confirm").close());

let typing;
byId("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    page = 0;
    attempt(update);
  }, 200);
});
document.addEventListener("visibilitychange", live);

if (token.get()) attempt(logIn);
else byId("token").focus();
live();
