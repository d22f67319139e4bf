// Requests to the server that served this page, with the keys of this tab: an administrator's, and one for all else.

const ADMINISTRATION = /^v1\/(admin|organization)(\/|$)/;

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.error = error ?? {};
  }
}

const stored = (kind) => sessionStorage.getItem(`wye.key.${kind}`) ?? "";
const kindOf = (path) => (ADMINISTRATION.test(path) ? "admin" : "work");

/** The key for a path; a server without tenants has one kind of key only. */
function keyFor(kind) {
  return stored(kind) || stored(kind === "admin" ? "work" : "admin");
}

const door = document.getElementById("door");
const asking = new Map();

/** Asks for a key; false if there is none to give. Asks once for all who want the same at a time. */
function ask(kind, problem) {
  if (!asking.has(kind)) asking.set(kind, opened(kind, problem).finally(() => asking.delete(kind)));
  return asking.get(kind);
}

async function opened(kind, problem) {
  await Promise.all([...asking].filter(([other]) => other !== kind).map(([, each]) => each));
  document.getElementById("door-what").textContent = kind === "admin" ? "Administrator's key" : "API key";
  document.getElementById("door-problem").textContent = problem;
  const field = document.getElementById("door-key");
  door.returnValue = "";
  door.showModal();
  await new Promise((resolve) => door.addEventListener("close", resolve, { once: true }));
  const value = field.value.trim();
  field.value = "";
  if (door.returnValue !== "given" || !value) return false;
  sessionStorage.setItem(`wye.key.${kind}`, value);
  return true;
}

/** Sends a request, asking for a key as often as one is missing. */
async function send(method, path, body, signal) {
  const kind = kindOf(path);
  for (;;) {
    const key = keyFor(kind);
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    const options = { method, headers, signal, cache: "no-store" };
    if (body !== undefined) {
      headers["content-type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    const response = await fetch(path, options);
    if (response.ok) return response;
    const error = await failure(response);
    // Where there are tenants, neither kind of key opens what the other does.
    const isLocked = error.status === 401 || (error.status === 403 && !stored(kind));
    if (!isLocked || !(await ask(kind, key ? error.message : ""))) throw error;
  }
}

async function failure(response) {
  try {
    return new ApiError(response.status, (await response.json()).error);
  } catch {
    return new ApiError(response.status); // no JSON: the status has to do
  }
}

/** One request; the answer's JSON. */
export async function call(method, path, body, signal) {
  return (await send(method, path, body, signal)).json();
}

/** One request that is answered by a stream of events; yields their JSON up to [DONE]. */
export async function* events(path, body, signal) {
  const response = await send("POST", path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}
