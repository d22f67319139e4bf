// The KV pool page by page: who pays, which tier, how many share it, under which lease, for how long idle.

import { call } from "./api.js";
import { bytes, card, colour, duration, el, fill, svg, table, whole } from "./dom.js";
import { CACHED, FREE, WAYS, decoded, grounds, paint } from "./pages.js";

export const name = "memory";
export const title = "Memory";

const KINDS = {
  request: "request",
  context: "context of a program",
  export: "exported prefix",
  kept: "kept for a request",
  others: "smaller ones together",
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
  laid = paint(parts.canvas, shown, { way, chosen });
  const { free, cached } = grounds();
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
