// Small helpers that make elements. Text from the server only ever becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const PALETTE = ["#2f7ddb", "#d9822b", "#29a634", "#a854c9", "#00a396", "#db3737", "#9d7b00", "#7157d9", "#d13b84", "#5c7080"];

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export const el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

/** The colour of something named, the same as long as the page is open. */
const colours = new Map();
export function colour(name) {
  if (!colours.has(name)) colours.set(name, PALETTE[colours.size % PALETTE.length]);
  return colours.get(name);
}

export const whole = (value) => Number(value ?? 0).toLocaleString("en", { maximumFractionDigits: 0 });

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = Number(value ?? 0);
  let at = 0;
  for (; size >= 1024 && at < units.length - 1; at += 1) size /= 1024;
  return `${size.toLocaleString("en", { maximumFractionDigits: at ? 1 : 0 })} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "—";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export const moment = (unix) => (unix ? new Date(unix * 1000).toLocaleString() : "—");

/** A card with a heading. */
export const card = (title, attributes, ...children) =>
  el("section", { class: `card ${attributes?.class ?? ""}`, "aria-label": title }, el("h2", {}, title), ...children);

/** What stands in a card below its heading, anew. */
export function fill(place, ...children) {
  place.replaceChildren(place.firstChild, ...children.filter((child) => child !== null));
}

/** Names and values. */
export const facts = (pairs) =>
  el("dl", {}, pairs.filter((pair) => pair[1] !== undefined).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value ?? "—")]));

/**
 * A table of objects.
 * columns: [heading, value of a row (text or node), "number" if it is one]
 */
export function table(caption, columns, rows, empty = "None.") {
  if (!rows?.length) return el("p", { class: "none" }, empty);
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map(([heading, , kind]) => el("th", { scope: "col", class: kind }, heading)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(([, value, kind]) => el("td", { class: kind }, value(row)))))),
    ),
  );
}

/** A line over time; values are the newest last. */
export function sparkline(values, title) {
  const width = 240;
  const height = 48;
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, at) => `${(at / Math.max(values.length - 1, 1)) * width},${height - 2 - (value / most) * (height - 6)}`);
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width: "100%", height, role: "img", "aria-label": title, preserveAspectRatio: "none" },
    svg("line", { class: "axis", x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
    svg("polyline", { class: "line", points: points.join(" "), "vector-effect": "non-scaling-stroke" }),
  );
}

/** Programs that have not ended, as the overview tells of them. */
export const programTable = (programs) =>
  table(
    "Programs that have not ended",
    [
      ["run", (run) => el("code", {}, run.id)],
      ["program", (run) => run.program],
      ["tenant", (run) => run.tenant || "—"],
      ["age", (run) => duration(run.wall_s), "number"],
      ["contexts", (run) => whole(run.contexts), "number"],
      ["generations", (run) => whole(run.generations), "number"],
      ["tokens", (run) => whole(run.completion_tokens), "number"],
      ["calls", (run) => whole(run.host_calls), "number"],
    ],
    programs,
    "No program is running.",
  );
