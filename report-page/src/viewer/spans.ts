/** Parts of the history that the program named, and their memory: analysis/spans.py, range_use.py and page/bands.py. */

import type { Mark } from "./checked";
import { printable, shortened } from "./labels";
import { ALLOC, ENTRY, type Snapshot } from "./model";
import type { Patterns } from "./rules";
import type { Timeline } from "./timeline";

const [RANGE, METADATA, COMPILE] = [0, 1, 2];
const MOST_SPANS = 200_000;
const MOST_DRAWN = 20_000;
const MOST_RANGES = 200;
const MOST_NAME = 200;
const LANES = 6;
const COLORS = 6;

interface Span {
  name: string;
  kind: number;
  begin: number; // moments
  end: number;
  beginNs: number; // since the first entry
  endNs: number;
}

export interface Bands {
  spans: string[];
  ranges: string[];
  columns: Record<string, number[]>;
}

export function bandsOf(snapshot: Snapshot & { marks?: Mark[] }, timeline: Timeline, patterns: Patterns): Bands {
  const found = spansOf(snapshot, timeline);
  const stem = (name: string) => name.replace(patterns.of("span_number"), "") || name;
  const shown = (name: string) => printable(shortened(name, MOST_NAME), patterns);
  const rows = lanesOf(found).flatMap((lane, at) => lane.map((span) => ({ span, lane: at }))).slice(0, MOST_DRAWN);
  const names = numbered(rows.map(({ span }) => span.name));
  const stems = numbered([...names.keys()].map(stem));
  const uses = usesOf(snapshot, timeline, found, stem).slice(0, MOST_RANGES);
  const of = (pick: (row: (typeof rows)[0]) => number) => rows.map(pick);
  return {
    spans: [...names.keys()].map(shown),
    ranges: uses.map(({ name }) => shown(name)),
    columns: {
      "span.begin": of(({ span }) => span.begin),
      "span.begin_ns": of(({ span }) => span.beginNs),
      "span.end": of(({ span }) => span.end),
      "span.end_ns": of(({ span }) => span.endNs),
      "span.name": of(({ span }) => names.get(span.name) ?? 0),
      "span.kind": of(({ span }) => span.kind),
      "span.lane": of(({ lane }) => lane),
      "span.color": of(({ span }) => (stems.get(stem(span.name)) ?? 0) % COLORS),
      "range.name": uses.map((_, row) => row),
      "range.times": uses.map(({ times }) => times),
      "range.peak": uses.map(({ peak }) => peak),
      "range.at": uses.map(({ at }) => at),
      "range.allocated": uses.map(({ allocated }) => allocated),
      "range.growth": uses.map(({ growth }) => growth),
    },
  };
}

function numbered(texts: string[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const text of texts) if (!found.has(text)) found.set(text, found.size);
  return found;
}

function spansOf(snapshot: Snapshot & { marks?: Mark[] }, timeline: Timeline): Span[] {
  const { trace, labels, device } = snapshot;
  const times = timeline.time.slice(1);
  let known = false;
  for (let row = 0; row < times.length; row++) {
    known ||= trace.number(row, ENTRY.time) > 0;
    if (row && times[row] < times[row - 1]) times[row] = times[row - 1];
  }
  if (!known) return [];
  const marks = snapshot.marks ?? marksIn(snapshot.notes);
  const index = device.slice(device.lastIndexOf(":") + 1);
  const own = marks.filter((mark) => String(mark.device) === index);
  const found = ranges(own.length ? own : marks, times, trace.big(0, ENTRY.time));
  found.push(...runs(snapshot, times, labels.map(([context]) => (context && context !== "N/A" ? `compile ${context}` : "")), COMPILE));
  found.push(...runs(snapshot, times, labels.map(([, text]) => text), METADATA));
  const order = (a: Span, b: Span) => a.beginNs - b.beginNs || b.endNs - a.endNs || a.begin - b.begin || b.end - a.end;
  return found.slice(0, MOST_SPANS).sort(order);
}

/** Return the marks in the notes of forebay's own format. */
function marksIn(notes: Record<string, unknown>): Mark[] {
  const noted = notes.external_annotations;
  if (!Array.isArray(noted)) return [];
  return noted.flatMap((each: Record<string, unknown> | null) => {
    const { time_us: time, stage, name, device } = each ?? {};
    if (typeof time !== "number" || !Number.isInteger(time) || time < 0 || time >= 2 ** 52) return [];
    if (typeof stage !== "string" || typeof name !== "string") return [];
    return [{ time: BigInt(time), stage, name, device: Number.isInteger(device) ? (device as number) : 0 }];
  });
}

/** Return the ranges between starts and ends. An end closes the latest open range of its name. */
function ranges(marks: Mark[], times: Float64Array, first: bigint): Span[] {
  const opened = new Map<string, number[]>();
  const bounds: [name: string, begin: number, end: number][] = [];
  const last = times[times.length - 1];
  const ordered = marks.map((mark) => ({ ...mark, at: Number(mark.time * 1000n - first) })).sort((a, b) => a.at - b.at);
  for (const { at, stage, name } of ordered) {
    const open = opened.get(name) ?? [];
    opened.set(name, open);
    if (stage === "START") open.push(at);
    else if (stage === "END") bounds.push([name, open.pop() ?? Math.min(times[0], at), at]);
  }
  for (const [name, starts] of opened) for (const at of starts) bounds.push([name, at, Math.max(last, at)]);
  return bounds.map(([name, beginNs, endNs]) => {
    const begin = placeOf(times, beginNs, false);
    return { name, kind: RANGE, begin, end: Math.max(begin, placeOf(times, endNs, true)), beginNs, endNs };
  });
}

/** Return the number of times before a time, or up to it. */
function placeOf(times: Float64Array, time: number, inclusive: boolean): number {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < time || (inclusive && times[middle] === time)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the runs of entries with the same text. Frees do not end a run: they may carry the text of another. */
function runs({ trace }: Snapshot, times: Float64Array, texts: string[], kind: number): Span[] {
  const found: Span[] = [];
  if (!texts.some(Boolean)) return found;
  let open: Span | undefined;
  for (let row = 0; row < trace.count; row++) {
    if (trace.get(row, ENTRY.action) !== ALLOC) continue;
    const note = trace.get(row, ENTRY.note);
    const name = note ? texts[note - 1] : "";
    if (!open || open.name !== name) {
      open = { name, kind, begin: row, end: row, beginNs: times[row], endNs: times[row] };
      if (name) found.push(open);
    }
    open.end = row + 1;
    open.endNs = times[row];
  }
  return found;
}

/** Return spans by lane: a span is below those that it overlaps. */
function lanesOf(found: Span[]): Span[][] {
  const rows: Span[][] = [];
  for (const span of found) {
    const free = rows.find((row) => row[row.length - 1].endNs <= span.beginNs);
    if (free) free.push(span);
    else if (rows.length < LANES) rows.push([span]);
  }
  return rows;
}

interface Use {
  name: string;
  times: number;
  peak: number;
  at: number;
  allocated: number;
  growth: number;
}

function usesOf({ trace }: Snapshot, { allocated: levels }: Timeline, found: Span[], stem: (name: string) => string): Use[] {
  const sums = new Float64Array(trace.count + 1);
  for (let row = 0; row < trace.count; row++) {
    sums[row + 1] = sums[row] + (trace.get(row, ENTRY.action) === ALLOC ? trace.number(row, ENTRY.nbytes) : 0);
  }
  const groups = new Map<string, { name: string; members: Span[] }>();
  for (const span of found) {
    if (span.end <= span.begin) continue;
    const name = span.kind === RANGE ? stem(span.name) : span.name;
    const group = groups.get(`${span.kind} ${name}`);
    if (group) group.members.push(span);
    else groups.set(`${span.kind} ${name}`, { name, members: [span] });
  }
  return [...groups.values()].map(({ name, members }) => {
    let [at, allocated, change] = [-1, 0, 0];
    for (const { begin, end } of members) {
      let top = begin;
      for (let m = begin; m <= end; m++) if (levels[m] > levels[top]) top = m;
      if (at < 0 || levels[top] > levels[at]) at = top;
      allocated += sums[end] - sums[begin];
      change += levels[end] - levels[begin];
    }
    return { name, times: members.length, peak: levels[at], at, allocated, growth: evenly(change / members.length) };
  });
}

/** Round as Python does: halves to the even neighbour. */
function evenly(value: number): number {
  const rounded = Math.round(value);
  return rounded - value === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}
