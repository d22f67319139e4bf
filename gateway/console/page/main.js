// The frame of the page: which view is shown, and the numbers that all views are drawn from.

import { ApiError, call } from "./api.js";
import { el } from "./dom.js";
import * as audit from "./audit.js";
import * as memory from "./memory.js";
import * as overview from "./overview.js";
import * as prefixes from "./prefixes.js";
import * as playground from "./playground.js";
import * as runs from "./runs.js";
import * as tenants from "./tenants.js";
import * as tools from "./tools.js";

const PERIOD_MS = 1000;
const VIEWS = [overview, memory, tenants, prefixes, runs, tools, audit, playground];

const main = document.getElementById("view");
const state = document.getElementById("state");
const again = document.getElementById("again");
let shown;

function say(text, isBad = false) {
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("bad", isBad);
}

function current() {
  const name = location.hash.slice(1);
  return VIEWS.find((view) => view.name === name) ?? VIEWS[0];
}

function show() {
  const view = current();
  if (view === shown) return;
  shown?.leave?.();
  shown = view;
  document.title = `${view.title} · Wye`;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.hash === `#${view.name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(...view.enter());
}

async function follow() {
  for (;;) {
    try {
      const data = await call("GET", "v1/admin/overview");
      const engine = data.engine ? `${data.engine.model} on ${data.engine.device}` : "no engine";
      say(data.server.is_draining ? "shutting down" : engine, !data.engine || data.server.is_draining);
      shown?.update?.(data);
    } catch (error) {
      say(error instanceof ApiError ? error.message : "the server does not answer", true);
      if (error.status === 401 || error.status === 403) {
        // Nobody gave a key: what needs none can be used, and the rest when somebody asks for it.
        again.hidden = false;
        await new Promise((resolve) => again.addEventListener("click", resolve, { once: true }));
        again.hidden = true;
        continue;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 5 * PERIOD_MS : PERIOD_MS));
  }
}

document.getElementById("views").append(...VIEWS.map((view) => el("li", {}, el("a", { href: `#${view.name}` }, view.title))));
addEventListener("hashchange", show);
show();
follow();
