// The frame of the page: which view is shown, the key, and the numbers that all views are drawn from.

import { ApiError, call, key } from "./api.js";
import { el } from "./dom.js";
import * as overview from "./overview.js";
import * as playground from "./playground.js";

const PERIOD_MS = 1000;
const VIEWS = [overview, playground];

const main = document.getElementById("view");
const state = document.getElementById("state");
const door = document.getElementById("door");
let shown;

function say(text, isBad = false) {
  state.textContent = text;
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

/** Asks for a key until one is taken. */
async function ask(problem) {
  document.getElementById("door-problem").textContent = problem;
  if (!door.open) door.showModal();
  await new Promise((resolve) => door.addEventListener("close", resolve, { once: true }));
  const field = document.getElementById("door-key");
  key.set(field.value.trim());
  field.value = "";
}

async function follow() {
  for (;;) {
    try {
      const data = await call("GET", "v1/admin/overview");
      const engine = data.engine ? `${data.engine.model} on ${data.engine.device}` : "no engine";
      say(data.server.is_draining ? "shutting down" : engine, !data.engine || data.server.is_draining);
      shown?.update?.(data);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        await ask(key.get() ? error.message : "");
        continue;
      }
      say(error instanceof ApiError ? error.message : "the server does not answer", true);
    }
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 5 * PERIOD_MS : PERIOD_MS));
  }
}

document.getElementById("views").append(...VIEWS.map((view) => el("li", {}, el("a", { href: `#${view.name}` }, view.title))));
door.addEventListener("cancel", (event) => event.preventDefault());
addEventListener("hashchange", show);
show();
follow();
