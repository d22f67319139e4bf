// A run over time: text, branches of contexts, tools and KV, drawn as it happens.

import { bytes, colour, duration, svg } from "./dom.js";

const WIDTH = 900;
const LEFT = 96;
const ROW = 16;

/** What happened in one run. Feed it `text` and `trace`, then `draw` it. */
export class Story {
  constructor() {
    this.started = performance.now();
    this.end = 0;
    this.texts = [];
    this.rows = new Map();
    this.tools = [];
    this.kv = [];
    this.marks = [];
  }

  text(size) {
    this.end = Math.max(this.end, performance.now() - this.started);
    this.texts.push({ at: this.end, size });
  }

  mark(label) {
    this.marks.push({ at: this.end, label });
  }

  trace(one) {
    const at = one.at_ms;
    this.end = Math.max(this.end, at);
    const row = this.rows.get(one.context);
    switch (one.type) {
      case "context.open":
        this.rows.set(one.context, { id: one.context, parent: one.parent, from: at, spans: [] });
        break;
      case "context.close":
        if (row) row.to = at;
        break;
      case "generate.start":
        row?.spans.push({ from: at, label: one.lane });
        break;
      case "generate.end": {
        const span = row?.spans.findLast((each) => each.to === undefined);
        if (span) Object.assign(span, { to: at, tokens: one.tokens });
        break;
      }
      case "tool.start":
        this.tools.push({ id: one.call, name: one.name, from: at });
        break;
      case "tool.end": {
        const tool = this.tools.find((each) => each.id === one.call);
        if (tool) Object.assign(tool, { to: at, failed: one.is_error });
        break;
      }
      case "kv":
        this.kv.push({ at, bytes: one.bytes });
        break;
      default:
        this.marks.push({ at, label: one.type });
    }
  }

  draw() {
    const span = Math.max(this.end, 1);
    const x = (at) => LEFT + (Math.min(at, span) / span) * (WIDTH - LEFT - 8);
    const children = [];
    let y = 14;
    const named = (label, at) => children.push(svg("text", { class: "label", x: 0, y: at + 11 }, label));

    named("text", y);
    for (const one of this.marks) children.push(svg("circle", { cx: x(one.at), cy: y + 6, r: 4, fill: "var(--warn)" }, svg("title", {}, one.label)));
    for (const one of this.texts) children.push(svg("line", { x1: x(one.at), x2: x(one.at), y1: y, y2: y + 12, stroke: "var(--accent)", "stroke-width": 1.5 }));
    y += ROW + 4;

    for (const row of this.rows.values()) {
      named(row.parent ? `${row.id} of ${row.parent}` : `context ${row.id}`, y);
      children.push(svg("line", { class: "axis", x1: x(row.from), x2: x(row.to ?? span), y1: y + 7, y2: y + 7, "stroke-width": 2 }));
      const parent = row.parent && this.rows.get(row.parent);
      if (parent?.y) children.push(svg("line", { class: "axis", x1: x(row.from), x2: x(row.from), y1: parent.y + 7, y2: y + 7 }));
      row.y = y;
      for (const each of row.spans) {
        const to = each.to ?? span;
        const title = `${each.label}: ${each.tokens ?? "…"} tokens in ${duration((to - each.from) / 1000)}`;
        children.push(
          svg("rect", { class: "span", x: x(each.from), y: y + 1, width: Math.max(x(to) - x(each.from), 2), height: 12, fill: colour(`lane ${each.label}`) }, svg("title", {}, title)),
        );
      }
      y += ROW;
    }
    for (const tool of this.tools) {
      named(tool.name, y);
      const to = tool.to ?? span;
      const fill = tool.failed ? "var(--bad)" : colour(`tool ${tool.name}`);
      children.push(svg("rect", { class: "span", x: x(tool.from), y: y + 1, width: Math.max(x(to) - x(tool.from), 2), height: 12, fill }, svg("title", {}, duration((to - tool.from) / 1000))));
      y += ROW;
    }
    y += 4;
    const most = Math.max(...this.kv.map((one) => one.bytes), 1);
    named(`KV ${this.kv.length ? bytes(this.kv.at(-1).bytes) : ""}`, y + 10);
    const points = this.kv.map((one) => `${x(one.at)},${y + 40 - (one.bytes / most) * 36}`).join(" ");
    children.push(svg("polyline", { class: "line", points }), svg("line", { class: "axis", x1: LEFT, x2: WIDTH - 8, y1: y + 40, y2: y + 40 }));
    y += 54;
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const anchor = share === 1 ? "end" : "start";
      children.push(svg("text", { class: "label", x: x(share * span), y, "text-anchor": anchor }, duration((share * span) / 1000)));
    }
    const summary = `${this.rows.size} contexts, ${this.tools.length} tool calls, ${duration(span / 1000)}`;
    return svg("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${y + 6}`, role: "img", "aria-label": `Timeline of the run: ${summary}` }, children);
  }
}
