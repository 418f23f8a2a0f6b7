/** The layers of the chart: allocations grouped by site, size, stream or pool, and those that a search leaves out. */

import { bytes, count } from "./format";
import type { History } from "./history";
import { search } from "./search";
import type { Color } from "./state";

const TOP = 9; // groups with a color of their own
export const OTHERS = TOP;
export const UNMATCHED = TOP + 1; // what does not match the search
export const LAYERS = TOP + 2;

export interface Layers {
  of: Uint8Array; // the layer of each allocation
  names: string[]; // "" for a layer without allocations
  stacking: number[]; // from bottom to top: layers of long-lived allocations are below
}

export function makeLayers(history: History, color: Color, text: string): Layers {
  const { start, end, nbytes, peak, count: rows } = history;
  const group = grouping(history, color);
  const groups = new Map<number, { live: number; total: number; lifetime: number }>();
  for (let row = 0; row < rows; row++) {
    const key = group.of(row);
    let sums = groups.get(key);
    if (!sums) groups.set(key, (sums = { live: 0, total: 0, lifetime: 0 }));
    sums.total += nbytes[row];
    sums.lifetime += nbytes[row] * (end[row] - start[row]);
    if (start[row] <= peak && peak < end[row]) sums.live += nbytes[row];
  }
  const sorted = [...groups].sort(([, one], [, other]) => other.live - one.live || other.total - one.total);
  const ranks = new Map(sorted.slice(0, TOP).map(([key], rank) => [key, rank]));

  const matches = search(history, text);
  const of = new Uint8Array(rows);
  const used = new Set<number>();
  for (let row = 0; row < rows; row++) {
    of[row] = matches(row) ? (ranks.get(group.of(row)) ?? OTHERS) : UNMATCHED;
    used.add(of[row]);
  }
  const names = sorted.slice(0, TOP).map(([key]) => group.name(key));
  while (names.length < TOP) names.push("");
  names.push(`${count(Math.max(0, sorted.length - TOP))} others`, `not matching “${text}”`);
  const lifetimes = sorted.slice(0, TOP).map(([, sums]) => sums.lifetime / Math.max(1, sums.total));
  const stacking = lifetimes.map((_, rank) => rank).sort((a, b) => lifetimes[b] - lifetimes[a]);
  return { of, names: names.map((name, layer) => (used.has(layer) ? name : "")), stacking: [...stacking, OTHERS, UNMATCHED] };
}

interface Grouping {
  of: (row: number) => number;
  name: (key: number) => string;
}

function grouping(history: History, color: Color): Grouping {
  switch (color) {
    case "site":
      return { of: (row) => history.site(history.stack[row]), name: (site) => history.siteName(site) };
    case "size":
      return {
        of: (row) => Math.ceil(Math.log2(Math.max(1, history.nbytes[row]))),
        name: (power) => `up to ${bytes(2 ** power)}`,
      };
    case "stream":
      return { of: (row) => history.queue[row], name: (queue) => history.streamName(queue) };
    case "pool":
      return { of: (row) => history.pool[row], name: (pool) => history.poolName(pool) };
  }
}
