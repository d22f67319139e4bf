// Tenants: what they use, hold and may use; their keys; forms for all of it.

import { call } from "./api.js";
import { bytes, card, el, fill, moment, table, whole } from "./dom.js";

export const name = "tenants";
export const title = "Tenants";

const PERIOD_MS = 3000;
const NOBODY = "There are no tenants: the server was started without an administrator's key (WYE_ADMIN_KEY). All requests count as one.";

let places;
let chosen;
let drawn;
let has = true;

export function enter() {
  places = {
    list: card("Tenants", { class: "wide" }),
    one: card("A tenant", { class: "wide" }),
    denials: card("Refused lately", { class: "wide" }),
  };
  places.one.hidden = true;
  drawn = 0;
  return [el("div", { class: "cards" }, Object.values(places))];
}

export function update(data) {
  has = data.server.has_tenants;
  if (performance.now() - drawn > PERIOD_MS || !drawn) refresh();
}

async function refresh() {
  drawn = performance.now();
  if (!has) {
    fill(places.list, el("p", { class: "none" }, NOBODY));
    fill(places.denials);
    return;
  }
  try {
    const [limits, denials] = await Promise.all([call("GET", "v1/admin/kv_limits?limit=100"), call("GET", "v1/admin/denials?limit=20")]);
    drawList(limits.data);
    drawDenials(denials.data);
  } catch (error) {
    fill(places.list, el("p", { class: "problem", role: "alert" }, error.message));
  }
}

const kibSeconds = (value) => (value === null || value === undefined ? "—" : `${bytes(value * 1024)}·s`);

function used(one) {
  const quota = one.limits.kv_kib_seconds;
  const { used_estimate_kib_seconds: now, held_kib_seconds: held } = one.usage;
  if (quota === null) return kibSeconds(now);
  const text = `${kibSeconds(now)} of ${kibSeconds(quota)}, ${kibSeconds(held)} held`;
  return [el("meter", { min: 0, max: quota, value: Math.min(now, quota), high: quota * 0.8, "aria-label": `KV used by ${one.name}: ${text}` }), text];
}

function drawList(tenants) {
  const focused = document.activeElement?.dataset?.tenant;
  fill(
    places.list,
    table(
      "Tenants with what they use",
      [
        ["name", (one) => el("button", { type: "button", class: "quiet", "data-tenant": one.id, onclick: () => choose(one.id) }, one.name)],
        ["state", (one) => el("span", { class: one.state === "active" ? "good" : "warn" }, one.state)],
        ["running", (one) => whole(one.usage.num_running), "number"],
        ["KV now", (one) => bytes(one.usage.level_kib * 1024), "number"],
        ["KV in the window", used],
        ["resets", (one) => moment(one.usage.resets_at)],
        ["requests / min", (one) => (one.limits.requests_per_minute === null ? "—" : whole(one.limits.requests_per_minute)), "number"],
        ["tokens / min", (one) => (one.limits.tokens_per_minute === null ? "—" : whole(one.limits.tokens_per_minute)), "number"],
      ],
      tenants,
      "No tenant yet.",
    ),
    made("Add a tenant", [["Name", "name", "text"]], async ({ name }) => {
      const tenant = await call("POST", "v1/organization/projects", { name });
      await refresh();
      await choose(tenant.id);
    }),
  );
  if (focused) places.list.querySelector(`[data-tenant="${CSS.escape(focused)}"]`)?.focus();
}

function drawDenials(denials) {
  fill(
    places.denials,
    table(
      "Newest first",
      [
        ["when", (one) => moment(one.at)],
        ["tenant", (one) => one.project_id],
        ["limit", (one) => one.reason],
        ["whose", (one) => one.limit_source || "—"],
        ["used", (one) => (one.limit < 0 ? "—" : `${whole(one.used)} of ${whole(one.limit)}`), "number"],
        ["enforced", (one) => (one.shadow ? "no: shadow" : "yes")],
      ],
      denials,
      "Nothing was refused.",
    ),
  );
}

async function choose(id) {
  chosen = id;
  const [one, keys] = await Promise.all([
    call("GET", `v1/admin/kv_limits/${id}`),
    call("GET", `v1/organization/projects/${id}/api_keys?limit=100`),
  ]);
  if (chosen !== id) return;
  places.one.hidden = false;
  places.one.firstChild.textContent = one.name;
  fill(places.one, limitsForm(one), el("h3", {}, "Keys"), el("div", { id: "key-list" }, keyTable(one, keys.data)), keyForm(one));
  places.one.scrollIntoView({ block: "nearest" });
}

function limitsForm(one) {
  const fields = [
    ["Requests per minute", "requests_per_minute", "number"],
    ["Tokens per minute", "tokens_per_minute", "number"],
    ["Requests at once", "concurrency", "number"],
    ["KV quota (KiB·s)", "kv_kib_seconds", "number"],
    ["Window", "kv_window", "text"],
    ["KV at once (KiB)", "resident_kib", "number"],
    ["Weight", "weight", "number"],
  ];
  const states = { label: "State", name: "state", choices: ["active", "shadow", "suspended"], value: one.state };
  const values = { ...one.limits };
  return made(
    "Save limits",
    fields.map(([label, field, type]) => [label, field, type, values[field]]),
    async (given) => {
      const body = { state: given.state };
      for (const [, field, type] of fields) {
        if (type === "number") body[field] = given[field] === "" ? null : Number(given[field]);
        else if (given[field]) body[field] = given[field];
      }
      await call("POST", `v1/admin/kv_limits/${one.id}`, body);
      await refresh();
    },
    states,
  );
}

function keyTable(one, keys) {
  return table(
    "Keys; their values are shown once, when they are made",
    [
      ["name", (key) => key.name],
      ["key", (key) => el("code", {}, key.redacted_value)],
      ["scopes", (key) => key.scopes.join(" ")],
      ["last used", (key) => moment(key.last_used_at)],
      ["expires", (key) => moment(key.expires_at)],
      ["action", (key) => el("button", { type: "button", class: "danger", onclick: () => toggle(one, key) }, key.disabled ? "Enable" : "Disable")],
    ],
    keys,
    "No key yet.",
  );
}

async function toggle(one, key) {
  await call("POST", `v1/organization/projects/${one.id}/api_keys/${key.id}`, { disabled: !key.disabled });
  await choose(one.id);
}

function keyForm(one) {
  const shown = el("p", { class: "good", role: "status" });
  const form = made(
    "Make a key",
    [
      ["Name", "name", "text"],
      ["Scopes (empty: all)", "scopes", "text"],
      ["Expires in days (empty: never)", "days", "number"],
    ],
    async ({ name, scopes, days }) => {
      const body = { name: name || "API key", scopes: scopes.split(/[\s,]+/).filter(Boolean) };
      if (days) body.expires_in_seconds = Math.round(Number(days) * 86400);
      const key = await call("POST", `v1/admin/projects/${one.id}/api_keys`, body);
      const keys = await call("GET", `v1/organization/projects/${one.id}/api_keys?limit=100`);
      document.getElementById("key-list").replaceChildren(keyTable(one, keys.data));
      shown.replaceChildren("Copy it now, it is not shown again: ", el("code", {}, key.value));
    },
  );
  return el("div", {}, form, shown);
}

/** A small form. fields: [label, name, type, value]; `pick`: a field of few choices. */
function made(verb, fields, act, pick) {
  const problem = el("p", { class: "problem", role: "alert" });
  const inputs = fields.map(([label, field, type, value]) => {
    const id = `${verb}-${field}`.replaceAll(/\W/g, "-").toLowerCase();
    return el("div", {}, el("label", { for: id }, label), el("input", { id, name: field, type, min: type === "number" ? 0 : null, value: value ?? null }));
  });
  if (pick) {
    const id = `${verb}-${pick.name}`.replaceAll(/\W/g, "-").toLowerCase();
    const options = pick.choices.map((choice) => el("option", { value: choice, selected: choice === pick.value }, choice));
    inputs.push(el("div", {}, el("label", { for: id }, pick.label), el("select", { id, name: pick.name }, options)));
  }
  const button = el("button", { type: "submit" }, verb);
  const form = el("form", {}, el("div", { class: "fields" }, inputs), el("div", { class: "row" }, button), problem);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    problem.textContent = "";
    try {
      await act(Object.fromEntries(new FormData(form)));
    } catch (error) {
      problem.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  });
  return form;
}
