// Programs that run now, and detached runs that the server keeps.

import { call } from "./api.js";
import { card, duration, el, fill, moment, programTable, table, whole } from "./dom.js";

export const name = "runs";
export const title = "Runs";

const PERIOD_MS = 3000;
let places;
let drawn;

export function enter() {
  places = { now: card("Running now", { class: "wide" }), kept: card("Detached runs", { class: "wide" }) };
  drawn = 0;
  return [el("div", { class: "cards" }, Object.values(places))];
}

export function update(data) {
  fill(places.now, programTable(data.programs));
  if (performance.now() - drawn > PERIOD_MS || !drawn) refresh();
}

async function refresh() {
  drawn = performance.now();
  try {
    const found = await call("GET", "v1/runs?limit=50");
    fill(
      places.kept,
      table(
        "Newest first",
        [
          ["run", (run) => el("code", {}, run.id)],
          ["program", (run) => run.program.name ?? run.program.digest?.slice(0, 12) ?? "—"],
          ["state", (run) => el("span", { class: { completed: "good", failed: "bad" }[run.status] ?? "" }, run.status)],
          ["begun", (run) => moment(run.created_at)],
          ["took", (run) => (run.ended_at ? duration(run.ended_at - run.created_at) : "—"), "number"],
          ["events", (run) => whole(run.last_sequence_number), "number"],
          ["action", (run) => (run.status === "in_progress" ? el("button", { type: "button", class: "danger", onclick: () => cancel(run) }, "Cancel") : null)],
        ],
        found.data,
        "None.",
      ),
    );
  } catch (error) {
    fill(places.kept, el("p", { class: "problem", role: "alert" }, error.message));
  }
}

async function cancel(run) {
  await call("POST", `v1/runs/${run.id}/cancel`, {});
  await refresh();
}
