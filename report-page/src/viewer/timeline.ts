/** Memory over time, as forebay/snapshot/analysis/timeline.py has it; native/snapshot/lifetimes.hpp matches the frees. */

import { ENTRY, MAP, RELEASE, RESERVE, SEGMENT, type Snapshot, UNMAP, Table } from "./model";
import type { Module } from "./module";

const LIFETIME = { address: 0, nbytes: 2, queue: 4, start: 6, end: 7, stack: 8, pool: 9, width: 10 };

/** Allocations by their start. Those from before the history come first. */
export interface Timeline {
  time: Float64Array; // of each moment, in nanoseconds since the first entry
  allocated: Float64Array;
  reserved: Float64Array;
  peak: number;
  start: Int32Array;
  end: Int32Array; // the number of moments: live at the end
  nbytes: Float64Array;
  address: Float64Array;
  stack: Int32Array; // -1: never seen
  pool: Int32Array;
  queue: BigUint64Array;
}

/** Return the change of the reserved bytes that an action stands for. */
export function signOf(action: number): number {
  return action === RESERVE || action === MAP ? 1 : action === RELEASE || action === UNMAP ? -1 : 0;
}

export function reconstruct(module: Module, { trace, blocks, segments }: Snapshot): Timeline {
  const held = matched(module, trace, blocks, segments);
  const moments = trace.count + 1;
  const order = byStart(held, moments);
  const column = (word: number): Int32Array => {
    const found = new Int32Array(order.length);
    for (let at = 0; at < found.length; at++) found[at] = held.get(order[at], word);
    return found;
  };
  const long = (word: number): Float64Array => {
    const found = new Float64Array(order.length);
    for (let at = 0; at < found.length; at++) found[at] = held.number(order[at], word);
    return found;
  };
  const [start, end, nbytes] = [column(LIFETIME.start), column(LIFETIME.end), long(LIFETIME.nbytes)];
  const allocated = new Float64Array(moments + 1);
  for (let row = 0; row < start.length; row++) {
    allocated[start[row]] += nbytes[row];
    allocated[end[row]] -= nbytes[row];
  }
  for (let m = 1; m < moments; m++) allocated[m] += allocated[m - 1];
  const reserved = new Float64Array(moments);
  let sum = 0;
  for (let row = 0; row < segments.count; row++) sum += segments.number(row, SEGMENT.nbytes);
  for (let m = moments - 1; m >= 0; m--) {
    reserved[m] = Math.max(0, sum);
    if (m > 0) sum -= signOf(trace.get(m - 1, ENTRY.action)) * trace.number(m - 1, ENTRY.nbytes);
  }
  let peak = 0;
  for (let m = 1; m < moments; m++) if (allocated[m] > allocated[peak]) peak = m;
  return {
    time: times(trace),
    allocated: allocated.subarray(0, moments),
    reserved,
    peak,
    start,
    end,
    nbytes,
    address: long(LIFETIME.address),
    stack: column(LIFETIME.stack),
    pool: column(LIFETIME.pool),
    queue: BigUint64Array.from(order, (row) => held.big(row, LIFETIME.queue)),
  };
}

function matched(module: Module, trace: Table, blocks: Table, segments: Table): Table {
  const { native } = module;
  const places = [trace, blocks, segments].map((table) => module.copied(table.words));
  const count = native.match(places[0], trace.count, places[1], blocks.count, places[2]);
  for (const place of places) native.release(place);
  const words = count ? module.words(native.matched() >>> 0, count * LIFETIME.width).slice() : undefined;
  native.forget();
  return new Table(count, LIFETIME.width, words);
}

/** Return the rows by start. At most one allocation starts at each moment but the first. */
function byStart(held: Table, moments: number): Int32Array {
  const rowAt = new Int32Array(moments).fill(-1);
  const order = new Int32Array(held.count);
  let next = 0;
  for (let row = 0; row < held.count; row++) {
    const start = held.get(row, LIFETIME.start);
    if (start) rowAt[start] = row;
    else order[next++] = row;
  }
  for (const row of rowAt) if (row >= 0) order[next++] = row;
  return order;
}

/** Return the time of each moment since the first entry, exactly. */
function times(trace: Table): Float64Array {
  const found = new Float64Array(trace.count + 1);
  if (!trace.count) return found;
  const [low, high] = [trace.get(0, ENTRY.time), trace.get(0, ENTRY.time + 1)];
  for (let row = 0; row < trace.count; row++) {
    found[row + 1] = (trace.get(row, ENTRY.time + 1) - high) * 2 ** 32 + (trace.get(row, ENTRY.time) - low);
  }
  return found;
}
