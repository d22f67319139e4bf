// Write a program, see what is wrong with it while you type, run it and watch what it does.

import { ApiError, call, events } from "./api.js";
import { card, duration, el, facts, whole } from "./dom.js";
import { Story } from "./timeline.js";

export const name = "playground";
export const title = "Playground";

const KEPT = "wye.playground";
const CHECK_AFTER_MS = 350;
const DRAW_EVERY_MS = 120;
const FIRST = `"""Best of n: sample n answers from one prompt, and keep the likeliest."""


async def main(request, lm):
    prompt = await lm.context(request.messages)
    branches = await prompt.fork(request.args.get("n", 3))
    answers = await asyncio.gather(
        *[b.generate(max_tokens=40, temperature=0.9, seed=i) for i, b in enumerate(branches)]
    )
    best = max(answers, key=lambda answer: answer.mean_logprob)
    print(f"{len(answers)} answers, the best has {best.mean_logprob:.2f}")
    return best.text
`;

let parts;
let running;
let timer;
let checking;

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

export function enter() {
  const saved = kept();
  parts = {
    source: el("textarea", { id: "source", rows: 22, spellcheck: "false", autocapitalize: "off", "aria-describedby": "problems verdict", oninput: edited, onscroll: aligned, onkeydown: typed }),
    lines: el("pre", { "aria-hidden": "true" }),
    problems: el("ul", { id: "problems" }),
    verdict: el("p", { id: "verdict", role: "status" }),
    prompt: el("textarea", { id: "prompt", rows: 3, oninput: keep }),
    args: el("input", { id: "args", type: "text", spellcheck: "false", oninput: keep }),
    run: el("button", { type: "button", onclick: start }, "Run"),
    stop: el("button", { type: "button", class: "danger", onclick: () => running?.abort(), disabled: true }, "Stop"),
    shipped: el("select", { id: "shipped", onchange: load }, el("option", { value: "" }, "…")),
    answer: el("div", { class: "answer", role: "log", "aria-label": "Text of the answer" }),
    timeline: el("div", {}),
    log: el("pre", { class: "answer", role: "log", "aria-label": "What the program printed and told" }),
    outcome: el("div", {}),
  };
  parts.source.value = saved.source ?? FIRST;
  parts.prompt.value = saved.prompt ?? "Name a river in France.";
  parts.args.value = saved.args ?? '{"n": 3}';
  const hint = "Tab indents; press Escape, then Tab, to leave the editor. Ctrl+Enter runs.";
  const left = card(
    "Program",
    {},
    el("label", { for: "shipped" }, "Begin with a program of the server"),
    parts.shipped,
    el("label", { for: "source" }, "Source"),
    el("div", { class: "editor" }, parts.lines, parts.source),
    el("p", { class: "none" }, hint),
    parts.verdict,
    parts.problems,
    el("label", { for: "prompt" }, "What the user says"),
    parts.prompt,
    el("label", { for: "args" }, "Arguments (JSON)"),
    parts.args,
    el("div", { class: "row" }, parts.run, parts.stop),
  );
  const right = card("Run", {}, el("h3", {}, "Text"), parts.answer, el("h3", {}, "Timeline"), parts.timeline, el("h3", {}, "Log"), parts.log, parts.outcome);
  numbered();
  check();
  list();
  return [el("div", { class: "bench" }, left, right)];
}

export function leave() {
  clearTimeout(timer);
  running?.abort();
}

function keep() {
  const { source, prompt, args } = parts;
  localStorage.setItem(KEPT, JSON.stringify({ source: source.value, prompt: prompt.value, args: args.value }));
}

async function list() {
  try {
    const found = await call("GET", "v1/extensions?limit=100");
    parts.shipped.append(...found.data.map((one) => el("option", { value: one.id }, `${one.name} — ${one.description.split("\n")[0]}`)));
  } catch (error) {
    parts.verdict.textContent = error.message;
  }
}

async function load() {
  if (!parts.shipped.value) return;
  const found = await call("GET", `v1/extensions/${encodeURIComponent(parts.shipped.value)}`);
  parts.source.value = found.source;
  parts.args.value = "{}";
  edited();
}

// -- the editor -----------------------------------------------------------------------------------------------------

let leaves = false;

function typed(event) {
  if (event.key === "Escape") {
    leaves = true;
    return;
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    start();
  } else if (event.key === "Tab" && !event.shiftKey && !leaves) {
    event.preventDefault();
    parts.source.setRangeText("    ", parts.source.selectionStart, parts.source.selectionEnd, "end");
    edited();
  }
  leaves = false;
}

function edited() {
  keep();
  numbered();
  clearTimeout(timer);
  timer = setTimeout(check, CHECK_AFTER_MS);
}

function aligned() {
  parts.lines.scrollTop = parts.source.scrollTop;
}

function numbered(bad = new Set()) {
  const count = parts.source.value.split("\n").length;
  const numbers = Array.from({ length: count }, (_, at) => at + 1);
  parts.lines.replaceChildren(...numbers.flatMap((line) => [bad.has(line) ? el("b", {}, line) : String(line), "\n"]));
  aligned();
}

async function check() {
  checking?.abort();
  checking = new AbortController();
  try {
    const found = await call("POST", "v1/extensions/check", { source: parts.source.value }, checking.signal);
    told(found.diagnostics);
    parts.verdict.textContent = found.valid ? "It can run." : "";
    parts.verdict.className = "good";
  } catch (error) {
    if (error.name === "AbortError") return;
    parts.verdict.textContent = error.message;
    parts.verdict.className = "problem";
  }
}

function told(problems) {
  numbered(new Set(problems.map((one) => one.line)));
  parts.problems.replaceChildren(
    ...problems.map((one) => {
      const text = `line ${one.line}, column ${one.column}: ${one.message}`;
      return el("li", {}, el("button", { type: "button", onclick: () => visit(one.line, one.column) }, text));
    }),
  );
}

function visit(line, column) {
  const lines = parts.source.value.split("\n");
  const at = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0) + column - 1;
  parts.source.focus();
  parts.source.setSelectionRange(at, at);
}

// -- a run ----------------------------------------------------------------------------------------------------------

async function start() {
  if (running) return;
  let args;
  try {
    args = JSON.parse(parts.args.value || "{}");
  } catch (error) {
    failed(`The arguments are no JSON: ${error.message}`);
    return;
  }
  running = new AbortController();
  parts.run.disabled = true;
  parts.stop.disabled = false;
  for (const place of [parts.answer, parts.log, parts.outcome]) place.replaceChildren();
  const story = new Story();
  const drawing = setInterval(() => parts.timeline.replaceChildren(story.draw()), DRAW_EVERY_MS);
  const body = {
    messages: [{ role: "user", content: parts.prompt.value }],
    extension: { source: parts.source.value, args, trace: true },
    stream: true,
  };
  try {
    for await (const chunk of events("v1/chat/completions", body, running.signal)) take(chunk, story);
  } catch (error) {
    if (error.name === "AbortError") failed("Stopped.");
    else refused(error);
  } finally {
    clearInterval(drawing);
    parts.timeline.replaceChildren(story.draw());
    parts.run.disabled = false;
    parts.stop.disabled = true;
    running = undefined;
  }
}

function take(chunk, story) {
  if (chunk.error) throw new ApiError(200, chunk.error);
  const text = chunk.choices?.[0]?.delta?.content;
  if (text) {
    parts.answer.append(text);
    story.text(text.length);
  }
  const news = chunk.extension;
  if (!news) return;
  if (news.trace) story.trace(news.trace);
  else if (news.log !== undefined) parts.log.append(news.log);
  else if (news.event) {
    parts.log.append(`[${news.event.type}] ${JSON.stringify(news.event.data)}\n`);
    story.mark(news.event.type);
  } else if (news.run_id) ended(news);
}

function ended(outcome) {
  const used = outcome.usage;
  parts.outcome.replaceChildren(
    el("h3", {}, "Outcome"),
    facts([
      ["run", el("code", {}, outcome.run_id)],
      ["lane", outcome.exec_reason ? `${outcome.exec_path}: ${outcome.exec_reason}` : outcome.exec_path],
      ["result", outcome.result === null ? undefined : el("code", {}, JSON.stringify(outcome.result))],
      ["prompt tokens", `${whole(used.prompt_tokens)}, ${whole(used.cached_tokens)} of them cached`],
      ["generated", `${whole(used.completion_tokens)} tokens in ${whole(used.generations)} generations`],
      ["KV", `${whole(used.kv_byte_seconds)} byte-seconds`],
      ["calls of the server", whole(used.host_calls)],
      ["took", duration(used.wall_s)],
    ]),
  );
}

function refused(error) {
  if (error.error?.diagnostics) told(error.error.diagnostics);
  if (error.error?.traceback) parts.log.append(error.error.traceback);
  failed(error.message);
}

function failed(text) {
  parts.outcome.replaceChildren(el("p", { class: "problem", role: "alert" }, text));
}
