/** Snapshots of PyTorch: decoded, checked, and converted to tables as in forebay/snapshot/formats/torch_columns.py. */

import { type Mark, checkedDevices, type Device, pairAt } from "./checked";
import { check } from "./consistency";
import { chainOf, decode, type Tables, tablesOf } from "./decode";
import { placeOriginals, withCallers } from "./frames";
import { BLOCK, ENTRY, OOM, SEGMENT, type Snapshot, type Stacks, Table } from "./model";
import type { Module } from "./module";
import type { Patterns } from "./rules";
import type { Source } from "./source";

const HAS_POOL = 1 << 16; // added to an entry's action by the reader
const LARGE = 1n << 62n;
const ALIGNED = 1n << 40n;

export interface Marked extends Snapshot {
  marks: Mark[];
}

export async function readPickle(module: Module, source: Source, patterns: Patterns): Promise<Marked[]> {
  const truncated = await decode(module, source, patterns.rules);
  const raw = tablesOf(module);
  const devices = checkedDevices(module, patterns.rules, raw.pairs);
  const texts = new Map<number, string>();
  const text = (row: number): string => {
    let found = texts.get(row);
    if (found === undefined) texts.set(row, (found = module.text(row)));
    return found;
  };
  const tree = withCallers(raw, text, patterns);
  const found = devices.map((device) => {
    const place = (module.native.entries() >>> 0) + 4 * ENTRY.width * device.entries.first;
    const words = device.entries.count ? module.words(place, ENTRY.width * device.entries.count).slice() : undefined;
    return snapshotOf(device, new Table(device.entries.count, ENTRY.width, words), tree, patterns, truncated);
  });
  module.native.end();
  return found;
}

/** The decoder's tables, with forward frames as callers: texts from `more` are new. */
export interface Tree extends Tables {
  text: (row: number) => string;
  rowOf: Map<number, number>; // rows of the tree that replace others
}

function snapshotOf(device: Device, all: Table, tree: Tree, patterns: Patterns, truncated: string): Marked {
  const pools = new Pools();
  let { segments, blocks } = device;
  device.pools.forEach((pool, row) => segments.set(row, SEGMENT.pool, pools.number(pool)));
  const order = sorted(segments, SEGMENT.address);
  const place = new Uint32Array(order.length);
  order.forEach((row, at) => (place[row] = at));
  for (let row = 0; row < blocks.count; row++) blocks.set(row, BLOCK.segment, place[blocks.get(row, BLOCK.segment)]);
  segments = segments.taken(order);
  blocks = blocks.taken(sorted(blocks, BLOCK.address));

  const hasPools = all.count > 0 && (all.get(0, ENTRY.action) & HAS_POOL) > 0;
  const trace = numbered(all, tree, pools);
  if (!hasPools && pools.count) poolsByAddress(trace, segments);
  rebase(segments, blocks, trace);
  const labels = labelsOf(trace, tree);
  for (const [table, word] of [[segments, SEGMENT.stack], [blocks, BLOCK.stack], [trace, ENTRY.stack]] as const) {
    if (!tree.rowOf.size) break;
    for (let row = 0; row < table.count; row++) table.set(row, word, tree.rowOf.get(table.get(row, word)) ?? table.get(row, word));
  }
  const stacks = usedStacks(tree, patterns, [segments, SEGMENT.stack], [blocks, BLOCK.stack], [trace, ENTRY.stack]);
  let taken = 0;
  for (let row = 0; row < trace.count; row++) taken = Math.max(taken, trace.number(row, ENTRY.time));
  const notes: Record<string, unknown> = { from: "PyTorch", ...(truncated ? { truncated } : {}) };
  const rest = { device: device.name, capacity: 0, takenAt: taken, lost: 0, stats: {}, notes, marks: device.marks };
  const found = { ...rest, segments, blocks, trace, ...stacks, labels };
  check(found);
  return found;
}

/** Return the order of the rows by a 64-bit column. Rows with equal values keep their order. */
function sorted(table: Table, word: number): number[] {
  const keys = Array.from({ length: table.count }, (_, row) => table.big(row, word));
  return keys.map((_, row) => row).sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
}

/** Return the entries of known actions, with the numbers that the device has for its pools. */
function numbered(all: Table, tree: Tree, pools: Pools): Table {
  const known: number[] = [];
  for (let row = 0; row < all.count; row++) {
    const action = all.get(row, ENTRY.action) & (HAS_POOL - 1);
    all.set(row, ENTRY.action, action);
    if (action) known.push(row);
  }
  const trace = known.length < all.count ? all.taken(known) : all;
  const numbers = new Map<number, number>([[0, 0]]);
  for (const row of usedValues(trace, ENTRY.pool)) numbers.set(row, pools.number(pairAt(tree.pairs, row - 1)));
  if (numbers.size > 1) for (let row = 0; row < trace.count; row++) trace.set(row, ENTRY.pool, numbers.get(trace.get(row, ENTRY.pool)) ?? 0);
  return trace;
}

/** Return the values of a column except 0, ascending. */
function usedValues(table: Table, word: number): number[] {
  const found = new Set<number>();
  for (let row = 0; row < table.count; row++) found.add(table.get(row, word));
  found.delete(0);
  return [...found].sort((a, b) => a - b);
}

/** Give each entry the number of its label, and return the labels from 1. */
function labelsOf(trace: Table, { notes, text }: Tree): [string, string][] {
  const labels: [string, string][] = [];
  const known = new Map<string, number>();
  const numbers = new Map<number, number>([[0, 0]]);
  const word = (row: number) => (row ? text(row - 1) : "");
  for (const row of usedValues(trace, ENTRY.note)) {
    const [context, , own, internal] = notes.subarray(4 * (row - 1), 4 * row);
    const label: [string, string, string] = [word(context), word(own), word(internal)];
    const key = JSON.stringify(label);
    let number = label.some(Boolean) ? known.get(key) : 0;
    if (number === undefined) {
      known.set(key, (number = labels.length + 1));
      labels.push([label[0], label[1]]);
    }
    numbers.set(row, number);
  }
  if (numbers.size > 1) for (let row = 0; row < trace.count; row++) trace.set(row, ENTRY.note, numbers.get(trace.get(row, ENTRY.note)) ?? 0);
  return labels;
}

class Pools {
  private readonly numbers = new Map<string, number>();

  get count(): number {
    return this.numbers.size;
  }

  number([first, second]: [bigint, bigint]): number {
    if (!first && !second) return 0;
    const key = `${first},${second}`;
    let found = this.numbers.get(key);
    if (found === undefined) this.numbers.set(key, (found = this.numbers.size + 1));
    return found;
  }
}

/** Give each entry the pool of the segment at its address: versions before 2.10 record it only for segments. */
function poolsByAddress(trace: Table, segments: Table): void {
  const starts = Array.from({ length: segments.count }, (_, row) => segments.big(row, SEGMENT.address));
  for (let row = 0; row < trace.count; row++) {
    const address = trace.big(row, ENTRY.address);
    let [low, high] = [0, starts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= address) low = middle + 1;
      else high = middle;
    }
    const inside = low > 0 && address < BigInt.asUintN(64, starts[low - 1] + segments.big(low - 1, SEGMENT.nbytes));
    trace.set(row, ENTRY.pool, inside ? segments.get(low - 1, SEGMENT.pool) : 0);
  }
}

/** Subtract what large addresses have in common: torch_addresses.py. */
function rebase(segments: Table, blocks: Table, trace: Table): void {
  let [least, most] = [1n << 64n, 0n];
  const each = (action: (table: Table, row: number, word: number) => void): void => {
    for (const [table, word] of [[segments, SEGMENT.address], [blocks, BLOCK.address], [trace, ENTRY.address]] as const) {
      for (let row = 0; row < table.count; row++) {
        if (table === trace && table.get(row, ENTRY.action) === OOM) continue; // the free memory
        if (table.get(row, word) || table.get(row, word + 1)) action(table, row, word);
      }
    }
  };
  let high = 0;
  each((table, row, word) => (high = Math.max(high, table.get(row, word + 1))));
  if (high < 2 ** 30) return; // all are below 2^62
  each((table, row, word) => {
    const address = table.big(row, word);
    if (address < least) least = address;
    if (address > most) most = address;
  });
  const base = (least - 1n) & -ALIGNED;
  if (base <= 0n || most - base >= LARGE) return; // the snapshot is refused
  each((table, row, word) => table.setBig(row, word, table.big(row, word) - base));
}

/** Return the stacks, frames and strings that the tables of one device use, and renumber their stacks. */
function usedStacks(tree: Tree, patterns: Patterns, ...columns: [Table, number][]): Stacks {
  const isUsed = new Uint8Array(tree.parents.length);
  isUsed[0] = 1;
  for (const [table, word] of columns) {
    for (let row = 0; row < table.count; row++) {
      for (let at = table.get(row, word); !isUsed[at]; at = tree.parents[at]) isUsed[at] = 1;
    }
  }
  const number = new Uint32Array(isUsed.length);
  let count = 0;
  for (let row = 0; row < isUsed.length; row++) if (isUsed[row]) number[row] = count++;
  for (const [table, word] of columns) for (let row = 0; row < table.count; row++) table.set(row, word, number[table.get(row, word)]);

  const [parent, frame] = [new Uint32Array(count), new Uint32Array(count)];
  const [frameRows, textRows] = [new Map<number, number>(), new Map<number, number>()];
  for (let row = 1; row < isUsed.length; row++) {
    if (!isUsed[row]) continue;
    const at = tree.frameOf[row];
    if (!frameRows.has(at)) frameRows.set(at, frameRows.size);
    parent[number[row]] = number[tree.parents[row]];
    frame[number[row]] = frameRows.get(at) ?? 0;
  }
  const frames = new Uint32Array(3 * frameRows.size);
  const details = new Map<number, Map<string, string>>();
  for (const [at, row] of frameRows) {
    const [name, file, line, chain] = tree.frames.subarray(4 * at, 4 * at + 4);
    for (const text of [file, name]) if (!textRows.has(text)) textRows.set(text, textRows.size);
    frames.set([textRows.get(file) ?? 0, textRows.get(name) ?? 0, line], 3 * row);
    if (chain) details.set(row, new Map(chainOf(tree.details, chain).map(([key, text]) => [tree.text(key), tree.text(text)])));
  }
  const strings = [...textRows.keys()].map(tree.text);
  return { parent, frame, ...placeOriginals(frames, strings, details, patterns) };
}
