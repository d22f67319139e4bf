// Runs the checks of a client library of node and prints what came out as JSON; see harness.py, whose twin this is.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export { sleep };
export const target = JSON.parse(process.argv[2]);
export const lines = JSON.parse(readFileSync(new URL("lines.json", import.meta.url), "utf8"));
export const PATIENCE_MS = 60_000;
export const SHORT_MS = 400;
export const QUESTION = "What is the capital of France?";
export const MODEL_MAX_TOKENS = 24;

const checks = new Map();
const lacking = new Map();

/** A prompt that names a scenario. */
export function ask(scenario, options = {}) {
  return `[[${[scenario, ...Object.entries(options).map(([name, value]) => `${name}=${value}`)].join(" ")}]]`;
}

/** Declares the check of a feature: it throws if the feature does not work. */
export function check(feature, run) {
  assert(!checks.has(feature), feature);
  checks.set(feature, run);
}

/** Declares what the library does not offer, and why. */
export function lacks(reason, ...features) {
  for (const feature of features) lacking.set(feature, reason);
}

/** What a call throws, which must be of a kind. */
export async function failure(kind, call) {
  let answer;
  try {
    answer = await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`${kind.name} was not thrown; the answer was ${JSON.stringify(answer)}`);
}

async function samples() {
  const shown = await (await fetch(target.url.replace(/\/v1$/, "/metrics"))).text();
  const found = shown.split("\n").filter((line) => line && !line.startsWith("#"));
  return found.map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]);
}

/** Requests that were answered with a status so far. */
export async function countRequests(status) {
  const found = (await samples()).filter(([name]) => name.startsWith("wye_http_requests_total{"));
  return found.filter(([name]) => name.includes(`status="${status}"`)).reduce((sum, [, value]) => sum + value, 0);
}

/** Resolves when the scripted server has ended all work, which nobody waits for any more. */
export async function untilIdle() {
  const names = ["wye_gateway_active_requests", "wye_engine_running_sequences"];
  const deadline = Date.now() + PATIENCE_MS;
  while ((await samples()).some(([name, value]) => names.includes(name.split("{")[0]) && value)) {
    assert(Date.now() < deadline, "still busy");
    await sleep(20);
  }
}

check("snippet", async () => {
  const { log } = console;
  const printed = [];
  console.log = (...words) => printed.push(words.join(" "));
  const { write } = process.stdout;
  process.stdout.write = (text) => printed.push(text);
  try {
    await import(new URL("snippet.mjs", import.meta.url));
  } finally {
    console.log = log;
    process.stdout.write = write;
  }
  assert(printed.join("").trim(), "it printed nothing");
});

async function outcome(run) {
  try {
    await run();
    await untilIdle();
  } catch (error) {
    return { state: "fails", detail: error.stack ?? String(error) };
  }
  return { state: "works" };
}

/** Runs everything and prints the results. */
export async function main(name) {
  const cells = Object.fromEntries([...lacking].map(([feature, detail]) => [feature, { state: "lacks", detail }]));
  for (const [feature, run] of checks) {
    if (target.real_url === null && (feature === "snippet" || feature.startsWith("real-"))) continue;
    const started = Date.now();
    cells[feature] = await outcome(run);
    console.error(`${feature}: ${cells[feature].state}, ${(Date.now() - started) / 1000} s`);
  }
  const manifest = new URL(`../node_modules/${name}/package.json`, import.meta.url);
  const { version } = JSON.parse(readFileSync(manifest, "utf8"));
  console.log(JSON.stringify({ package: name, version, cells }));
}
