// Prefixes that the server keeps: what they cost, until when, and who may use them.

import { call } from "./api.js";
import { bytes, card, duration, el, fill, table, whole } from "./dom.js";

export const name = "prefixes";
export const title = "Prefixes";

const PERIOD_MS = 3000;
let place;
let drawn;

export function enter() {
  place = card("Prefixes", { class: "wide" });
  drawn = 0;
  refresh();
  return [el("div", { class: "cards" }, place)];
}

export function update() {
  if (performance.now() - drawn > PERIOD_MS && !place.contains(document.activeElement)) refresh();
}

async function refresh() {
  drawn = performance.now();
  try {
    const now = Date.now() / 1000;
    const found = await call("GET", "v1/prefixes?limit=100");
    fill(
      place,
      table(
        "Of the key that this page has, and those shared with it",
        [
          ["name", (one) => `${one.name}@${one.version}`],
          ["state", (one) => el("span", { class: one.status === "warm" ? "good" : "warn" }, one.status)],
          ["tokens", (one) => whole(one.tokens), "number"],
          ["KV", (one) => bytes(one.bytes), "number"],
          ["paid", (one) => `${bytes(one.usage.charged_kib_seconds * 1024)}·s`, "number"],
          ["used", (one) => `${whole(one.usage.imports)} times`, "number"],
          ["for", (one) => [one.visibility, ...one.allow].join(", ")],
          ["ends in", (one) => `${duration(Math.max(one.expires_at - now, 0))}, ${one.ttl_mode}`],
          ["action", actions],
        ],
        found.data,
        "None. Programs make them by ctx.export, clients at /v1/prefixes.",
      ),
    );
  } catch (error) {
    fill(place, el("p", { class: "problem", role: "alert" }, error.message));
  }
}

function actions(one) {
  const path = `v1/prefixes/${encodeURIComponent(one.id)}`;
  const act = (method, rest) => async () => {
    try {
      await call(method, path + rest, method === "POST" ? {} : undefined);
    } finally {
      await refresh();
    }
  };
  const warms = one.status === "warm";
  return el(
    "span",
    { class: "row" },
    el("button", { type: "button", class: "quiet", onclick: act("POST", warms ? "/evict" : "/warm") }, warms ? "Evict" : "Warm"),
    el("button", { type: "button", class: "danger", onclick: act("DELETE", "") }, "Delete"),
  );
}
