// Requests to the server that served this page, with the key of this tab.

const KEY = "wye.key";

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.error = error ?? {};
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

function headers(body) {
  const found = {};
  if (key.get()) found.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) found["content-type"] = "application/json";
  return found;
}

async function checked(response) {
  if (response.ok) return response;
  let error;
  try {
    error = (await response.json()).error;
  } catch {
    error = undefined; // no JSON: the status has to do
  }
  throw new ApiError(response.status, error);
}

/** One request; the answer's JSON. */
export async function call(method, path, body, signal) {
  const options = { method, headers: headers(body), signal, cache: "no-store" };
  if (body !== undefined) options.body = JSON.stringify(body);
  return (await checked(await fetch(path, options))).json();
}

/** One request that is answered by a stream of events; yields their JSON up to [DONE]. */
export async function* events(path, body, signal) {
  const response = await checked(
    await fetch(path, { method: "POST", headers: headers(body), body: JSON.stringify(body), signal }),
  );
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
