/** Second pass: the checks of forebay/snapshot/formats/torch_validate.py. What else Python reads is refused. */

import { BLOCK, SEGMENT, Table } from "./model";
import type { Module } from "./module";
import { BadSnapshot, require, type Rules } from "./rules";
import { codeOf, Dict, dicts, flagOf, items, List, numberOf, ODD, Pair, Rows, StackRow, type Value, Values } from "./values";

const MOST_DEVICES = 1024;
const SEGMENTS = "a segment's";
const BLOCKS = "a block's";

/** A mark of `record_function` or the profiler. */
export interface Mark {
  time: bigint; // µs
  stage: string;
  name: string;
  device: number;
}

/** The checked values of one device, in the order of the file. */
export interface Device {
  name: string;
  segments: Table; // `stack` is a row of the decoder's tree, `pool` is not set
  pools: [bigint, bigint][]; // of the segments
  blocks: Table;
  entries: Rows;
  marks: Mark[];
}

export function checkedDevices(module: Module, rules: Rules, pairs: Uint32Array): Device[] {
  const value = new Values(module).root();
  const get = (key: string, missing: Value): Value => (value instanceof Dict && value.has(key) ? value.get(key) : missing);
  const none = new List(new Values(module), 0, 0);
  require(value instanceof List || (value instanceof Dict && value.has("segments")), "not a PyTorch snapshot: it has no segments");
  const segments = dicts(value instanceof List ? value : get("segments", none), "segments");
  const traces = [...items(get("device_traces", none), "device_traces")].map(history);
  const hostTrace = history(get("host_traces", none));
  const recorded = [...traces, hostTrace].filter((rows) => rows.count);
  require(new Set(recorded).size === recorded.length, "two devices share their history");
  const owners = segments.map((segment) => ownerOf(segment));
  require(traces.length <= MOST_DEVICES, "too many devices");
  const byDevice = new Map<number, Dict[]>();
  segments.forEach((segment, at) => {
    const own = byDevice.get(owners[at]);
    if (own) own.push(segment);
    else byDevice.set(owners[at], [segment]);
  });
  const used = new Set([...byDevice.keys(), ...traces.flatMap((rows, device) => (rows.count ? [device] : []))]);
  const devices = used.size ? [...used].sort((a, b) => a - b) : [0];
  const marks = marksOf(get("external_annotations", null));
  const checked = (name: string, own: Dict[], entries: Rows) => ({ name, ...tables(own, rules, pairs), entries, marks });
  const found = devices.map((index) => checked(`cuda:${index}`, byDevice.get(index) ?? [], traces[index] ?? new Rows(0, 0)));
  const pinned = dicts(get("host_segments", none), "host_segments");
  if (pinned.length || hostTrace.count) found.push(checked("pinned", pinned, hostTrace));
  return found;
}

function history(value: Value): Rows {
  if (value instanceof Rows) return value;
  if (items(value, "a trace").length) throw new BadSnapshot(ODD);
  return new Rows(0, 0);
}

function ownerOf(segment: Dict): number {
  const device = segment.has("device") ? segment.get("device") : 0n;
  require(typeof device === "bigint", `${SEGMENTS} device is not a number`);
  require(device >= 0n && device < MOST_DEVICES, "too many devices");
  return Number(device);
}

function tables(segments: Dict[], rules: Rules, pairs: Uint32Array): Pick<Device, "segments" | "pools" | "blocks"> {
  const rows = new Table(segments.length, SEGMENT.width);
  const groups = segments.map((segment) => items(segment.has("blocks") ? segment.get("blocks") : null, "a segment's blocks"));
  const filled = groups.filter((group) => group.length);
  require(new Set(filled).size === filled.length, "two segments share their blocks");
  const blocks = new Table(filled.reduce((sum, group) => sum + group.length, 0), BLOCK.width);
  const pools: [bigint, bigint][] = [];
  let at = 0;
  let placed: boolean | null = null;
  segments.forEach((segment, row) => {
    const start = numberOf(segment, "address", SEGMENTS);
    rows.setBig(row, SEGMENT.address, start);
    rows.setBig(row, SEGMENT.nbytes, numberOf(segment, "total_size", SEGMENTS));
    rows.setBig(row, SEGMENT.queue, numberOf(segment, "stream", SEGMENTS, 0n));
    rows.set(row, SEGMENT.stack, stackOf(segment));
    rows.set(row, SEGMENT.small, codeOf(segment, "segment_type", rules.segment_types, SEGMENTS, "large"));
    rows.set(row, SEGMENT.growing, Number(flagOf(segment, "is_expandable", SEGMENTS)));
    pools.push(poolOf(segment, pairs));
    let next = start;
    for (const own of dicts(groups[row], "a segment's blocks")) {
      const latest = latestOf(own);
      const of = (key: string) => (latest && !own.has(key) && latest.has(key) ? latest : own);
      const size = numberOf(own, "size", BLOCKS);
      placed ??= own.has("address"); // since 2.1; before, each block follows the previous one
      blocks.setBig(at, BLOCK.address, placed ? numberOf(own, "address", BLOCKS) : BigInt.asUintN(64, next));
      blocks.setBig(at, BLOCK.nbytes, size);
      const real = latest && !own.has("requested_size");
      const requested = real ? numberOf(latest, "real_size", BLOCKS, size) : numberOf(own, "requested_size", BLOCKS, size);
      blocks.setBig(at, BLOCK.requested, requested);
      blocks.set(at, BLOCK.stack, stackOf(of("frames")));
      blocks.set(at, BLOCK.segment, row);
      blocks.setBig(at, BLOCK.state, BigInt(codeOf(own, "state", rules.states, BLOCKS)));
      next += size;
      at++;
    }
  });
  return { segments: rows, pools, blocks };
}

/** Return the latest allocation of a block of PyTorch 2.0 or older: its history has those that overlapped it. */
function latestOf(block: Dict): Dict | null {
  if (!block.has("history")) return null;
  const past = items(block.get("history"), "a block's history");
  const latest = past.length && block.get("state") !== "inactive" ? past.get(0) : null;
  require(latest === null || latest instanceof Dict, "not all of a block's history are dicts");
  return latest;
}

function stackOf(row: Dict): number {
  const frames = row.has("frames") ? row.get("frames") : null;
  if (frames instanceof StackRow) return frames.row;
  if (frames === null || (frames instanceof List && !frames.length)) return 0;
  throw new BadSnapshot(ODD);
}

function poolOf(segment: Dict, pairs: Uint32Array): [bigint, bigint] {
  const wrong = "a pool's id is not a pair of numbers";
  const value = segment.has("segment_pool_id") ? segment.get("segment_pool_id") : null;
  if (value === null) return [0n, 0n];
  if (value instanceof Pair) return pairAt(pairs, value.row);
  require(value instanceof List && value.length === 2, wrong);
  const [first, second] = [value.get(0), value.get(1)];
  require(typeof first === "bigint" && typeof second === "bigint", wrong);
  require(first >= 0n && second >= 0n, "a pool's id is out of range");
  return [first, second];
}

export function pairAt(pairs: Uint32Array, row: number): [bigint, bigint] {
  const [low, high, second, secondHigh] = pairs.subarray(4 * row, 4 * row + 4);
  return [BigInt(low) | (BigInt(high) << 32n), BigInt(second) | (BigInt(secondHigh) << 32n)];
}

/** Return the annotations that have a time and a name: external_annotations.py. */
function marksOf(value: Value): Mark[] {
  if (!(value instanceof List)) return [];
  const found: Mark[] = [];
  for (const each of value) {
    if (!(each instanceof Dict)) continue;
    const [time, stage, name, device] = ["time_us", "stage", "name", "device"].map((key) => each.get(key));
    if (typeof time !== "bigint" || time < 0n || time >= 1n << 52n || typeof stage !== "string" || typeof name !== "string") continue;
    found.push({ time, stage, name, device: typeof device === "bigint" ? Number(device) : 0 });
  }
  return found;
}
