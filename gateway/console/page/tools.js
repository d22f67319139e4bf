// Tools that the server runs, and a way to try one.

import { call } from "./api.js";
import { card, el, fill, table } from "./dom.js";

export const name = "tools";
export const title = "Tools";

let places;

export function enter() {
  places = { list: card("Tools of the server", { class: "wide" }), trial: card("Try a tool", { class: "wide" }) };
  places.trial.hidden = true;
  refresh();
  return [el("div", { class: "cards" }, Object.values(places))];
}

async function refresh() {
  try {
    const found = await call("GET", "v1/tools?limit=100");
    fill(
      places.list,
      table(
        "Registered by the operator, or by the tenant of the key",
        [
          ["name", (tool) => el("code", {}, tool.id)],
          ["kind", (tool) => tool.kind],
          ["effect", (tool) => tool.effect],
          ["whose", (tool) => tool.owned_by],
          ["what it does", (tool) => tool.description],
          ["action", (tool) => el("button", { type: "button", class: "quiet", onclick: () => choose(tool) }, "Try")],
        ],
        found.data,
        "None. `wye tools add` registers one.",
      ),
    );
  } catch (error) {
    fill(places.list, el("p", { class: "problem", role: "alert" }, error.message));
  }
}

function choose(tool) {
  const input = el("textarea", { id: "tool-arguments", rows: 4, spellcheck: "false" }, "{}");
  const answer = el("pre", { class: "answer", role: "log", "aria-label": "What the tool answered" });
  const run = el("button", { type: "button", onclick: () => test(tool, input, answer, run) }, "Run");
  places.trial.hidden = false;
  places.trial.firstChild.textContent = `Try ${tool.id}`;
  fill(
    places.trial,
    tool.parameters ? el("pre", { class: "answer", tabindex: 0, role: "region", "aria-label": "Schema of its arguments" }, JSON.stringify(tool.parameters, null, 2)) : null,
    el("label", { for: "tool-arguments" }, "Arguments (JSON)"),
    input,
    el("div", { class: "row" }, run),
    answer,
  );
  input.focus();
}

async function test(tool, input, answer, run) {
  run.disabled = true;
  try {
    const given = JSON.parse(input.value || "{}");
    const found = await call("POST", `v1/tools/${encodeURIComponent(tool.id)}/test`, { arguments: given });
    answer.textContent = JSON.stringify(found, null, 2);
  } catch (error) {
    answer.textContent = error.message;
  } finally {
    run.disabled = false;
  }
}
