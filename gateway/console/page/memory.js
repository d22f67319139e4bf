// The KV pool page by page: who pays, which tier, how many share it, under which lease, for how long idle.

import { call } from "./api.js";
import { bytes, card, colour, duration, el, fill, svg, table, whole } from "./dom.js";

export const name = "memory";
export const title = "Memory";

const FREE = -1;
const CACHED = -2;
const TALL = 340;
const GAP = 14;
const KINDS = {
  request: "request",
  context: "context of a program",
  export: "exported prefix",
  kept: "kept for a request",
  others: "smaller ones together",
};
/** What cells can be coloured by: the weight of a cell's colour, 0 to 1, and what that means. */
const WAYS = {
  payer: { label: "who pays", says: "A dot: under a lease." },
  idle: {
    label: "how long idle",
    says: "The paler, the longer nobody computes on it: seconds, minutes, longer.",
    weight: (holder) => (holder.idle_s === null ? 1 : [2, 20, 120].filter((age) => holder.idle_s < age).length * 0.22 + 0.2),
  },
  sharing: {
    label: "how many share it",
    says: "The fuller, the more hold it: one, two, up to nine, more.",
    weight: (_, sharers) => [0.25, 0.5, 0.75, 1][sharers < 2 ? 0 : sharers < 3 ? 1 : sharers < 10 ? 2 : 3],
  },
  lease: {
    label: "what leases are worth",
    says: "The fuller, the likelier it is used again, as its holder says; palest without a lease.",
    weight: (holder) => (holder.lease ? 0.35 + 0.65 * holder.lease.value : 0.15),
  },
};

let places;
let parts;
let shown;
let chosen = null;
let way = "payer";
let asked = false;
let laid;

export function enter() {
  places = { pages: card("Pages", { class: "wide" }), holders: card("Who holds them", { class: "wide" }) };
  parts = undefined;
  shown = undefined;
  refresh();
  return [el("div", { class: "cards" }, Object.values(places))];
}

export function update() {
  refresh();
}

async function refresh() {
  if (asked) return;
  asked = true;
  const { pages } = places;
  try {
    const found = await call("GET", "v1/admin/kv");
    if (pages !== places.pages) return;
    shown = { ...found, tiers: [decoded("device", found.device), decoded("host memory", found.host)].filter((tier) => tier.cells) };
    if (!parts) build();
    draw();
  } catch (error) {
    parts = undefined;
    fill(pages, el("p", { class: "problem", role: "alert" }, error.message));
    fill(places.holders);
  } finally {
    asked = false;
  }
}

/** Runs to one entry a cell. */
function decoded(label, { pages, cell_pages: size, runs }) {
  const cells = Math.ceil(pages / size);
  const owners = new Int32Array(cells);
  const sharers = new Uint8Array(cells);
  for (let at = 0, run = 0; run < runs.length; run += 3) {
    owners.fill(runs[run + 1], at, at + runs[run]);
    sharers.fill(runs[run + 2], at, at + runs[run]);
    at += runs[run];
  }
  return { label, pages, size, cells, owners, sharers };
}

function build() {
  const ways = Object.entries(WAYS).map(([value, each]) => el("option", { value, selected: value === way }, each.label));
  parts = {
    canvas: el("canvas", { class: "pages", role: "img", "aria-label": "", onpointermove: point, onclick: point }),
    way: el("select", { id: "memory-way", onchange: (event) => ((way = event.target.value), draw()) }, ways),
    says: el("p", { class: "none" }),
    place: el("input", { id: "memory-place", type: "range", min: 0, value: 0, oninput: tell }),
    told: el("output", { for: "memory-place", class: "told" }),
    legend: el("ul", { class: "legend", "aria-label": "Payers: press one to see its pages alone" }),
    buttons: new Map(),
    size: el("p", { class: "none" }),
  };
  fill(
    places.pages,
    el("div", { class: "row" }, el("div", {}, el("label", { for: "memory-way" }, "Colour by"), parts.way), parts.says),
    parts.canvas,
    el("label", { for: "memory-place" }, "Page"),
    parts.place,
    parts.told,
    parts.legend,
    parts.size,
  );
}

const who = (holder) => holder.name || holder.account || (holder.kind === "others" ? "many accounts" : "requests without a tenant");
const mine = (holder) => chosen === null || chosen === holder.account;

function draw() {
  const { tiers, holders } = shown;
  const count = tiers.reduce((sum, tier) => sum + tier.cells, 0);
  const width = Math.max(parts.canvas.parentElement.clientWidth - 32, 120);
  const side = Math.max(3, Math.min(14, Math.floor(Math.sqrt((width * TALL) / Math.max(count, 1)))));
  const columns = Math.floor(width / side);
  const ratio = devicePixelRatio || 1;
  laid = { side, columns, tiers: [] };
  let top = 0;
  for (const tier of tiers) {
    laid.tiers.push({ tier, top, first: laid.tiers.reduce((sum, one) => sum + one.tier.cells, 0) });
    top += Math.ceil(tier.cells / columns) * side + GAP;
  }
  const height = Math.max(top - GAP, side);
  parts.canvas.width = Math.round(width * ratio);
  parts.canvas.height = Math.round(height * ratio);
  parts.canvas.style.width = `${width}px`;
  parts.canvas.style.height = `${height}px`;
  const pen = parts.canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const [free, cached, ink] = ["--free", "--cached", "--ink"].map((each) => style.getPropertyValue(each).trim());
  pen.scale(ratio, ratio);
  const { weight } = WAYS[way];
  const gap = side > 5 ? 1 : 0;
  for (const { tier, top: start } of laid.tiers) {
    for (let cell = 0; cell < tier.cells; cell += 1) {
      const owner = tier.owners[cell];
      const holder = holders[owner];
      const x = (cell % columns) * side;
      const y = start + Math.floor(cell / columns) * side;
      pen.globalAlpha = 1;
      pen.fillStyle = owner === CACHED ? cached : free;
      pen.fillRect(x, y, side - gap, side - gap);
      if (!holder) continue;
      pen.globalAlpha = (mine(holder) ? 1 : 0.15) * (weight ? weight(holder, tier.sharers[cell]) : 1);
      pen.fillStyle = colour(holder.account);
      pen.fillRect(x, y, side - gap, side - gap);
      if (way === "payer" && holder.lease && side > 4) {
        pen.fillStyle = ink;
        const dot = Math.max(2, Math.floor(side / 4));
        pen.fillRect(x + Math.floor((side - gap - dot) / 2), y + Math.floor((side - gap - dot) / 2), dot, dot);
      }
    }
  }
  describe(free, cached);
}

function describe(free, cached) {
  const { tiers, holders, num_holders: held, page_bytes: page, page_tokens: tokens } = shown;
  const accounts = new Map();
  for (const holder of holders) {
    const one = accounts.get(holder.account) ?? { label: who(holder), pages: 0 };
    one.pages += holder.pages + holder.host_pages;
    accounts.set(holder.account, one);
  }
  const cells = (wanted) =>
    tiers.reduce((sum, tier) => sum + tier.owners.reduce((found, owner) => found + (owner === wanted), 0) * tier.size, 0);
  const rest = [
    ["cached, anybody's to reuse", cells(CACHED), cached],
    ["free", cells(FREE), free],
  ];
  const said = [...accounts.values()].map((one) => [one.label, one.pages]).concat(rest);
  parts.canvas.setAttribute("aria-label", said.map(([label, pages]) => `${label}: ${whole(pages)} pages`).join(", "));
  parts.says.textContent = WAYS[way].says;
  const cell = tiers[0]?.size ?? 1;
  const shared = cell > 1 ? `, ${whole(cell)} of them a square` : "";
  parts.size.textContent = `Pages of ${whole(tokens)} tokens, ${bytes(page)} each${shared}. ${tiers
    .map((tier) => `${tier.label}: ${whole(tier.pages)}`)
    .join(", ")}. Holders: ${whole(held)}.`;
  drawLegend(accounts, rest, page);
  parts.place.max = String(Math.max(tiers.reduce((sum, tier) => sum + tier.cells, 0) - 1, 0));
  tell();
  if (!places.holders.contains(document.activeElement)) drawHolders();
}

/** Buttons stay the same while their account is there: whoever is on one by keyboard stays on it. */
function drawLegend(accounts, rest, page) {
  const { legend, buttons } = parts;
  for (const [account, one] of buttons) {
    if (!accounts.has(account)) {
      one.item.remove();
      buttons.delete(account);
      if (chosen === account) chosen = null;
    }
  }
  for (const [account, { label, pages }] of accounts) {
    if (!buttons.has(account)) {
      const text = el("span", {});
      const button = el("button", { type: "button", class: "quiet", onclick: () => choose(account) }, swatch(colour(account)), text);
      const item = el("li", {}, button);
      buttons.set(account, { item, button, text });
      legend.prepend(item);
    }
    const { button, text } = buttons.get(account);
    text.textContent = `${label} ${bytes(pages * page)}`;
    button.setAttribute("aria-pressed", String(chosen === account));
  }
  for (const old of legend.querySelectorAll(".rest")) old.remove();
  legend.append(...rest.map(([label, pages, ground]) => el("li", { class: "rest" }, swatch(ground), `${label} ${bytes(pages * page)}`)));
}

function swatch(ground) {
  const square = svg("rect", { width: 12, height: 12, rx: 2 });
  square.style.fill = ground;
  return svg("svg", { width: 12, height: 12, "aria-hidden": "true", class: "swatch" }, square);
}

function choose(account) {
  chosen = chosen === account ? null : account;
  draw();
}

function drawHolders() {
  const { holders, page_bytes: page, at } = shown;
  fill(
    places.holders,
    table(
      "Whoever holds most first",
      [
        ["who pays", who],
        ["what", (one) => KINDS[one.kind]],
        ["on the device", (one) => bytes(one.pages * page), "number"],
        ["in host memory", (one) => (one.host_pages ? bytes(one.host_pages * page) : "—"), "number"],
        ["lease worth", (one) => (one.lease ? one.lease.value.toFixed(2) : "—"), "number"],
        ["under pressure", (one) => one.lease?.on_pressure ?? "—"],
        ["ends in", (one) => (one.expires_at === null ? "—" : duration(Math.max(one.expires_at - at, 0)))],
        ["idle for", (one) => (one.idle_s === null ? "—" : duration(one.idle_s))],
      ],
      holders.filter(mine),
      "Nobody holds any page.",
    ),
  );
}

/** Says what the chosen square is. */
function tell() {
  const place = Number(parts.place.value);
  const found = laid.tiers.findLast((one) => place >= one.first);
  if (!found) return;
  const { tier, first } = found;
  const cell = place - first;
  const start = cell * tier.size;
  const stop = Math.min(start + tier.size, tier.pages) - 1;
  const holder = shown.holders[tier.owners[cell]];
  const what = [`${tier.label}, page ${stop > start ? `${whole(start)} to ${whole(stop)}` : whole(start)}`];
  if (holder) {
    what.push(who(holder), KINDS[holder.kind]);
    if (tier.sharers[cell] > 1) what.push(`held by ${tier.sharers[cell]}`);
    if (holder.lease) what.push(`lease worth ${holder.lease.value.toFixed(2)}`);
    if (holder.expires_at !== null) what.push(`ends in ${duration(Math.max(holder.expires_at - shown.at, 0))}`);
    if (holder.idle_s !== null) what.push(`idle for ${duration(holder.idle_s)}`);
  } else {
    what.push(tier.owners[cell] === CACHED ? "cached, anybody's to reuse" : "free");
  }
  const text = what.join(" · ");
  if (parts.told.textContent !== text) parts.told.textContent = text;
}

function point(event) {
  const at = Math.floor(event.offsetX / laid.side);
  const found = laid.tiers.findLast((one) => event.offsetY >= one.top);
  if (!found || at >= laid.columns) return;
  const cell = Math.floor((event.offsetY - found.top) / laid.side) * laid.columns + at;
  if (cell >= found.tier.cells) return;
  parts.place.value = String(found.first + cell);
  tell();
}
