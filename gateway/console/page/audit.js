// What administrators changed, and what happened to accounts.

import { call } from "./api.js";
import { card, el, fill, moment, table } from "./dom.js";

export const name = "audit";
export const title = "Audit";

const PERIOD_MS = 3000;
let places;
let drawn;

export function enter() {
  places = { audit: card("Audit", { class: "wide" }), ledger: card("Ledger of KV accounts", { class: "wide" }) };
  drawn = 0;
  return [el("div", { class: "cards" }, Object.values(places))];
}

export function update(data) {
  if (!data.server.has_tenants) {
    fill(places.audit, el("p", { class: "none" }, "A server without tenants keeps no audit."));
    places.ledger.hidden = true;
    return;
  }
  if (performance.now() - drawn > PERIOD_MS || !drawn) refresh();
}

async function refresh() {
  drawn = performance.now();
  try {
    const [audit, ledger] = await Promise.all([call("GET", "v1/organization/audit_logs?limit=50"), call("GET", "v1/admin/ledger?limit=50")]);
    fill(
      places.audit,
      table(
        "Newest first",
        [
          ["when", (one) => moment(one.effective_at)],
          ["what", (one) => one.type],
          ["by", (one) => one.actor.api_key?.id ?? "—"],
          ["of", (one) => el("code", {}, one.target)],
          ["details", (one) => el("code", {}, JSON.stringify(one.details))],
        ],
        audit.data,
      ),
    );
    fill(
      places.ledger,
      table(
        "Newest first",
        [
          ["when", (one) => moment(one.at)],
          ["what", (one) => one.kind],
          ["tenant", (one) => one.project_id],
          ["details", (one) => el("code", {}, JSON.stringify(one.details))],
        ],
        ledger.data,
      ),
    );
  } catch (error) {
    fill(places.audit, el("p", { class: "problem", role: "alert" }, error.message));
  }
}
