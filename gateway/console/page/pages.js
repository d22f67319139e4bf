// The grid of pages: what is drawn on the canvas of the memory view, and where each square is.

import { colour } from "./dom.js";

export const FREE = -1;
export const CACHED = -2;

const TALL = 340;
const GAP = 14;

/** What cells can be coloured by: the weight of a cell's colour, 0 to 1, and what that means. */
export const WAYS = {
  payer: { label: "who pays", says: "A dot: under a lease." },
  idle: {
    label: "how long idle",
    says: "The paler, the longer nobody computes on it: seconds, minutes, longer.",
    weight: (holder) => (holder.idle_s === null ? 1 : [2, 20, 120].filter((age) => holder.idle_s < age).length * 0.22 + 0.2),
  },
  sharing: {
    label: "how many share it",
    says: "The fuller, the more hold it: one, two, up to nine, more.",
    weight: (_, sharers) => [0.25, 0.5, 0.75, 1][sharers < 2 ? 0 : sharers < 3 ? 1 : sharers < 10 ? 2 : 3],
  },
  lease: {
    label: "what leases are worth",
    says: "The fuller, the likelier it is used again, as its holder says; palest without a lease.",
    weight: (holder) => (holder.lease ? 0.35 + 0.65 * holder.lease.value : 0.15),
  },
};

/** Runs to one entry a cell. */
export function decoded(label, { pages, cell_pages: size, runs }) {
  const cells = Math.ceil(pages / size);
  const owners = new Int32Array(cells);
  const sharers = new Uint8Array(cells);
  for (let at = 0, run = 0; run < runs.length; run += 3) {
    owners.fill(runs[run + 1], at, at + runs[run]);
    sharers.fill(runs[run + 2], at, at + runs[run]);
    at += runs[run];
  }
  return { label, pages, size, cells, owners, sharers };
}

/**
 * Draws all tiers, one below the other, in squares as large as there is room for.
 * Returns where they are: the side of a square, squares a row, and of each tier its top and its first square.
 */
export function paint(canvas, { tiers, holders }, { way, chosen }) {
  const count = tiers.reduce((sum, tier) => sum + tier.cells, 0);
  const width = Math.max(canvas.parentElement.clientWidth - 32, 120);
  const side = Math.max(3, Math.min(14, Math.floor(Math.sqrt((width * TALL) / Math.max(count, 1)))));
  const columns = Math.floor(width / side);
  const laid = [];
  let top = 0;
  let first = 0;
  for (const tier of tiers) {
    laid.push({ tier, top, first });
    top += Math.ceil(tier.cells / columns) * side + GAP;
    first += tier.cells;
  }
  const height = Math.max(top - GAP, side);
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const { free, cached, ink } = grounds();
  const { weight } = WAYS[way];
  const size = side - (side > 5 ? 1 : 0);
  const dot = Math.max(2, Math.floor(side / 4));
  const inset = Math.floor((size - dot) / 2);
  for (const { tier, top: start } of laid) {
    for (let cell = 0; cell < tier.cells; cell += 1) {
      const owner = tier.owners[cell];
      const holder = holders[owner];
      const x = (cell % columns) * side;
      const y = start + Math.floor(cell / columns) * side;
      pen.globalAlpha = 1;
      pen.fillStyle = owner === CACHED ? cached : free;
      pen.fillRect(x, y, size, size);
      if (!holder) continue;
      const shown = chosen === null || chosen === holder.account;
      pen.globalAlpha = (shown ? 1 : 0.15) * (weight ? weight(holder, tier.sharers[cell]) : 1);
      pen.fillStyle = colour(holder.account);
      pen.fillRect(x, y, size, size);
      if (way === "payer" && holder.lease && side > 4) {
        pen.fillStyle = ink;
        pen.fillRect(x + inset, y + inset, dot, dot);
      }
    }
  }
  return { side, columns, tiers: laid };
}

/** Colours of the page as it is now, dark or light. */
export function grounds() {
  const style = getComputedStyle(document.documentElement);
  const [free, cached, ink] = ["--free", "--cached", "--ink"].map((each) => style.getPropertyValue(each).trim());
  return { free, cached, ink };
}
