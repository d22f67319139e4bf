// What the server does now: its engine, whose KV fills the pool, running programs.

import { bytes, card, colour, duration, el, facts, fill, programTable, sparkline, whole } from "./dom.js";

export const name = "overview";
export const title = "Overview";

const KEPT = 120;
const past = { tokens: [], running: [], used: [] };
let before;
let places;

export function enter() {
  places = {
    server: card("Server"),
    engine: card("Engine"),
    speed: card("Tokens per second"),
    load: card("Sequences"),
    kv: card("KV pool", { class: "wide" }),
    programs: card("Running programs", { class: "wide" }),
  };
  return [el("div", { class: "cards" }, Object.values(places))];
}

function remember(list, value) {
  list.push(value);
  if (list.length > KEPT) list.shift();
}

export function update(data) {
  const { server, engine, kv, programs } = data;
  fill(
    places.server,
    facts([
      ["version", server.version],
      ["up for", duration(data.at - server.started_at)],
      ["requests in flight", whole(server.active_requests)],
      ["Redis", server.redis],
      ["state", server.is_draining ? "shutting down" : "serving"],
    ]),
  );
  if (!engine) {
    fill(places.engine, el("p", { class: "problem" }, "No engine is connected."));
    return;
  }
  fill(
    places.engine,
    facts([
      ["model", engine.model],
      ["architecture", engine.architecture],
      ["device", `${engine.device}, ${engine.dtype}`],
      ["step", engine.step],
      ["attention", engine.attention_backend],
      ["last step", duration(engine.step_seconds)],
      ["preemptions", whole(engine.preemptions)],
    ]),
  );
  drawMap(kv);
  if (before) {
    const took = Math.max(data.at - before.at, 1e-3);
    remember(past.tokens, Math.max(engine.decode_tokens - before.engine.decode_tokens, 0) / took);
    remember(past.running, engine.running);
  }
  before = data;
  fill(places.speed, sparkline(past.tokens, "output tokens per second"), el("p", { class: "number" }, whole(past.tokens.at(-1))));
  fill(
    places.load,
    sparkline(past.running, "running sequences"),
    el("p", {}, `${whole(engine.running)} running, ${whole(engine.waiting)} waiting`),
  );
  fill(places.programs, programTable(programs));
}

/** One strip: what each payer holds, then the cache, then what is free. */
function drawMap(kv) {
  const page = kv.page_kib * 1024;
  const parts = kv.accounts
    .filter((one) => one.kib > 0)
    .map((one) => ({ label: one.name || one.account || "requests without a tenant", size: one.kib * 1024, ground: colour(one.account) }));
  // What an account pays for may lie in host memory.
  const held = (kv.used_pages + kv.host_pages) * page;
  const named = parts.reduce((sum, part) => sum + part.size, 0);
  if (held - named >= page) parts.push({ label: "just taken", size: held - named, ground: "var(--soft)" });
  parts.push({ label: "cached, anybody's to reuse", size: kv.cached_pages * page, ground: "var(--cached)" });
  const total = (kv.pages + kv.host_pages) * page;
  const taken = parts.reduce((sum, part) => sum + part.size, 0);
  parts.push({ label: "free", size: Math.max(total - taken, 0), ground: "var(--free)" });
  const described = parts.map((part) => `${part.label}: ${bytes(part.size)}`).join(", ");
  const strip = el("div", { class: "strip", role: "img", "aria-label": described });
  const legend = el("ul", { class: "legend" });
  for (const part of parts) {
    const piece = el("span", { title: `${part.label}: ${bytes(part.size)}` });
    piece.style.flexGrow = String(part.size / Math.max(total, 1));
    piece.style.background = part.ground;
    strip.append(piece);
    const swatch = el("i");
    swatch.style.background = part.ground;
    legend.append(el("li", {}, swatch, `${part.label} `, el("span", { class: "number" }, bytes(part.size))));
  }
  fill(
    places.kv,
    strip,
    legend,
    el("p", {}, el("a", { href: "#memory" }, "Page by page")),
    facts([
      ["pool", `${bytes(kv.pages * page)}, ${whole(kv.pages)} pages of ${bytes(page)}`],
      ["held on the device", `${whole(kv.used_pages)} pages`],
      ["held in host memory", `${whole(kv.host_pages)} pages, ${bytes(kv.host_pages * page)}`],
      ["contexts", `${whole(kv.contexts)}, ${whole(kv.leases)} of them under a lease`],
      ["made to give way", `${whole(kv.demoted_contexts)} contexts, ${whole(kv.revoked_leases)} leases`],
    ]),
  );
}
