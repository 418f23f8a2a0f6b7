/** The columns and names of one device: those that page/explorer.py writes into a report, and the key figures. */

import type { FrameRules } from "./frame-kinds";
import { commonFolder, printable, shortened } from "./labels";
import { ALLOC, BLOCK, ENTRY, FREE, FREE_REQUESTED, MAP, OOM, PENDING_FREE, SEGMENT, type Snapshot, UNMAP } from "./model";
import type { Module } from "./module";
import { programStacks } from "./program-stacks";
import type { Patterns } from "./rules";
import { findSites } from "./sites";
import { bandsOf } from "./spans";
import { reconstruct, signOf, type Timeline } from "./timeline";

const LARGEST = 2 ** 52; // as page/columns.py
const LARGEST_QUEUE = 1n << 32n; // larger ids of streams are addresses or flags
const MOST_NAME = 300;
const TOP = 9; // the largest sites, whose common folder is left out in names

/** The key figures of analysis/summary.py. */
export interface Summary {
  peak: number;
  peak_ever: number;
  peak_allocated: number;
  current: number;
  allocated: number;
  reserved: number;
  peak_reserved: number;
  allocations: number;
  frees: number;
  per_second: number;
  span_ns: number;
  largest_free: number;
  fragmentation: number;
  ooms: number;
  lost: number;
}

export interface Device {
  name: string;
  capacity: number;
  lost: number;
  streams: string[];
  largest_free: number;
  strings: string[];
  sites: string[];
  spans: string[];
  ranges: string[];
  columns: Record<string, Float64Array | Int32Array>;
  summary: Summary;
  older: { blocks: number; bytes: number }; // allocations from before the history
  entries: number;
  segments: number;
  takenAt: number;
  program: string; // its command line
  truncated: string; // where the file ends early
  sampled: boolean; // the sizes are estimates
}

export function deviceOf(module: Module, snapshot: Snapshot, rules: FrameRules): Device {
  const { patterns } = rules;
  const { trace, segments, blocks, frames, strings } = snapshot;
  const timeline = reconstruct(module, snapshot);
  const sites = findSites(snapshot, liveAt(timeline, timeline.peak), rules);
  const stacks = programStacks(snapshot, rules);
  const columns: Record<string, Float64Array | Int32Array> = { time: timeline.time, start: timeline.start };
  columns.lifetime = timeline.end.map((end, row) => end - timeline.start[row]);
  columns.nbytes = clipped(timeline.nbytes);
  [columns["address.table"], columns.address] = ranked(timeline.address);
  columns.stack = timeline.stack.map((row) => (row < 0 ? -1 : stacks.ofStack[row]));
  columns.pool = timeline.pool;

  const changes: number[] = [];
  const ooms: number[] = [];
  for (let row = 0; row < trace.count; row++) {
    const action = trace.get(row, ENTRY.action);
    if (signOf(action)) changes.push(row);
    if (action === OOM) ooms.push(row);
  }
  const segmentQueues = BigUint64Array.from({ length: segments.count }, (_, row) => segments.big(row, SEGMENT.queue));
  const changeQueues = BigUint64Array.from(changes, (row) => trace.big(row, ENTRY.queue));
  const queues = distinct([timeline.queue, segmentQueues, changeQueues]);
  const number = new Map(queues.map((queue, row) => [queue, row]));
  const numbers = (of: BigUint64Array) => Int32Array.from(of as unknown as ArrayLike<number>, (queue) => number.get(queue as unknown as bigint) ?? 0);
  columns.queue = numbers(timeline.queue);
  for (const [name, rows, table, layout] of [
    ["segment", [...range(segments.count)], segments, SEGMENT],
    ["change", changes, trace, ENTRY],
    ["pending", [...range(blocks.count)].filter((row) => blocks.get(row, BLOCK.state) === PENDING_FREE), blocks, BLOCK],
  ] as const) {
    columns[`${name}.address`] = clipped(Float64Array.from(rows, (row) => table.number(row, layout.address)));
    columns[`${name}.nbytes`] = clipped(Float64Array.from(rows, (row) => table.number(row, layout.nbytes)));
    if ("pool" in layout) columns[`${name}.pool`] = Int32Array.from(rows, (row) => table.get(row, layout.pool));
  }
  columns["segment.growing"] = Int32Array.from(range(segments.count), (row) => segments.get(row, SEGMENT.growing));
  columns["segment.queue"] = numbers(segmentQueues);
  columns["change.moment"] = Int32Array.from(changes, (row) => row + 1);
  columns["change.sign"] = Int32Array.from(changes, (row) => signOf(trace.get(row, ENTRY.action)));
  columns["change.growing"] = Int32Array.from(changes, (row) => Number([MAP, UNMAP].includes(trace.get(row, ENTRY.action))));
  columns["change.queue"] = numbers(changeQueues);

  columns["stack.parent"] = stacks.parent;
  columns["stack.frame"] = stacks.frame;
  ["file", "name", "line"].forEach((name, at) => {
    columns[`frame.${name}`] = Float64Array.from({ length: frames.length / 3 }, (_, row) => frames[3 * row + at]);
  });
  columns["stack.site"] = sitesOfStacks(stacks.ofStack, stacks.parent.length, sites.ofStack);
  columns["oom.moment"] = Int32Array.from(ooms, (row) => row + 1);
  columns["oom.wanted"] = clipped(Float64Array.from(ooms, (row) => trace.number(row, ENTRY.nbytes)));
  columns["oom.free"] = clipped(Float64Array.from(ooms, (row) => trace.number(row, ENTRY.address)));
  columns["oom.stack"] = Int32Array.from(ooms, (row) => stacks.ofStack[trace.get(row, ENTRY.stack)]);
  const bands = bandsOf(snapshot, timeline, patterns);
  for (const [name, values] of Object.entries(bands.columns)) columns[name] = Float64Array.from(values);

  const folder = commonFolder(largestSites(timeline, sites.ofStack, sites.labels), patterns);
  const summary = summaryOf(snapshot, timeline);
  return {
    name: printable(shortened(snapshot.device, MOST_NAME), patterns),
    capacity: snapshot.capacity,
    lost: snapshot.lost,
    streams: queues.map((queue) => (queue < LARGEST_QUEUE ? String(queue) : `0x${queue.toString(16)}`)),
    largest_free: summary.largest_free,
    strings: strings.map((text) => printable(shortened(text, MOST_NAME), patterns)),
    sites: sites.labels.map((label) => (folder && label.startsWith(folder) ? label.slice(folder.length) : label)),
    spans: bands.spans,
    ranges: bands.ranges,
    columns,
    summary,
    older: olderThan(timeline),
    entries: trace.count,
    segments: segments.count,
    takenAt: snapshot.takenAt,
    ...noted(snapshot.notes, patterns),
  };
}

const MOST_TEXT = 2000;

/** Return what the page shows of the notes, as forebay/snapshot/formats/known_notes.py reads them. */
function noted({ program, truncated, sampled }: Record<string, unknown>, patterns: Patterns): Pick<Device, "program" | "truncated" | "sampled"> {
  const text = (value: unknown) => printable(shortened(typeof value === "string" ? value : "", MOST_TEXT), patterns);
  return {
    program: text(Array.isArray(program) ? program.map(String).join(" ") : program),
    truncated: text(truncated),
    sampled: meanOf(sampled) > 0,
  };
}

/** Return the mean number of bytes between two bytes that a sample has chosen; 0 if the blocks are no sample. */
function meanOf(sampled: unknown): number {
  const mean = typeof sampled === "object" && sampled !== null && "mean_bytes" in sampled ? sampled.mean_bytes : 0;
  return typeof mean === "number" && Number.isInteger(mean) && mean > 0 && mean < 2 ** 60 ? mean : 0;
}

function* range(count: number): Iterable<number> {
  for (let at = 0; at < count; at++) yield at;
}

function clipped(values: Float64Array): Float64Array {
  for (let row = 0; row < values.length; row++) if (values[row] > LARGEST) values[row] = LARGEST;
  return values;
}

function liveAt({ start, end, stack, nbytes }: Timeline, moment: number): { stack: Int32Array; nbytes: Float64Array } {
  const rows: number[] = [];
  for (let row = 0; row < start.length; row++) if (start[row] <= moment && moment < end[row]) rows.push(row);
  return { stack: Int32Array.from(rows, (row) => stack[row]), nbytes: Float64Array.from(rows, (row) => nbytes[row]) };
}

/** Return the distinct addresses, ascending, and the place of each among them. */
function ranked(address: Float64Array): [Float64Array, Int32Array] {
  const sorted = address.slice().sort();
  const table = sorted.filter((each, at) => !at || each !== sorted[at - 1]);
  const place = new Map<number, number>();
  table.forEach((each, at) => place.set(each, at));
  return [clipped(table), Int32Array.from(address, (each) => place.get(each) ?? 0)];
}

function distinct(columns: BigUint64Array[]): bigint[] {
  const found = new Set<bigint>();
  let last: bigint | null = null;
  for (const column of columns) {
    for (const value of column) {
      if (value !== last) found.add((last = value));
    }
  }
  return [...found].sort((a, b) => (a < b ? -1 : 1));
}

/** Return the site of each of the program's stacks, and of allocations from before the history. */
function sitesOfStacks(ofStack: Int32Array, count: number, sites: Int32Array): Int32Array {
  const found = new Int32Array(count + 1).fill(1);
  for (let row = 0; row < ofStack.length; row++) found[ofStack[row]] = sites[row]; // equal stacks have equal sites
  found[count] = sites[sites.length - 1];
  found[0] = sites[0];
  return found;
}

/** Return the labels of the sites that allocated most. */
function largestSites({ stack, nbytes }: Timeline, ofStack: Int32Array, labels: string[]): string[] {
  const held = new Float64Array(labels.length);
  for (let row = 0; row < stack.length; row++) held[ofStack[stack[row] < 0 ? ofStack.length - 1 : stack[row]]] += nbytes[row];
  const order = [...range(labels.length)].sort((a, b) => held[b] - held[a] || a - b);
  return order.slice(0, TOP).filter((site) => held[site]).map((site) => labels[site]);
}

function olderThan({ start, nbytes }: Timeline): Device["older"] {
  let [blocks, bytes] = [0, 0];
  for (; blocks < start.length && !start[blocks]; blocks++) bytes += nbytes[blocks];
  return { blocks, bytes };
}

function summaryOf({ trace, blocks, stats, notes, lost }: Snapshot, { allocated, reserved, time, peak: at }: Timeline): Summary {
  const counts = new Map<number, number>();
  for (let row = 0; row < trace.count; row++) {
    const action = trace.get(row, ENTRY.action);
    counts.set(action, (counts.get(action) ?? 0) + 1);
  }
  let [largest, free] = [0, 0];
  for (let row = 0; row < blocks.count; row++) {
    if (blocks.number(row, BLOCK.state) !== FREE) continue;
    const nbytes = blocks.number(row, BLOCK.nbytes);
    largest = Math.max(largest, nbytes);
    free += nbytes;
  }
  const stat = (name: string, missing = 0) => (Object.hasOwn(stats, name) ? stats[name] : missing);
  const count = (action: number) => counts.get(action) ?? 0;
  const [peak, span, last] = [allocated[at], time[time.length - 1], allocated.length - 1];
  const { seconds: noted } = notes;
  const seconds = typeof noted === "number" && noted > 0 && noted < 1e12 ? noted : span / 1e9;
  const allocations = Math.max(count(ALLOC), stat("allocation.all.allocated"));
  const recorded = trace.count > 0;
  const ever = Math.max(peak, stat("requested_bytes.all.peak"));
  const most = reserved.reduce((found, bytes) => Math.max(found, bytes), 0);
  return {
    peak: recorded ? peak : ever,
    peak_ever: ever,
    peak_allocated: recorded && peak < ever ? peak : Math.max(peak, stat("allocated_bytes.all.peak")),
    current: allocated[last],
    allocated: stat("allocated_bytes.all.current", allocated[last]),
    reserved: reserved[last],
    peak_reserved: Math.max(most, recorded ? 0 : stat("reserved_bytes.all.peak")),
    allocations,
    frees: Math.max(count(FREE_REQUESTED), stat("allocation.all.freed")),
    per_second: seconds > 0 ? allocations / seconds : 0,
    span_ns: Math.max(0, span),
    largest_free: largest,
    fragmentation: largest ? 1 - largest / free : 0,
    ooms: Math.max(count(OOM), stat("num_ooms")),
    lost,
  };
}
