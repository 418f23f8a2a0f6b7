/** The recorded history of one device. Names are those of forebay/snapshot/analysis/timeline.py. */

import { type Columns, type Layout, PackedColumns } from "./columns";
import { LiveIndex, upperBound } from "./live-index";
import { BlockMaxima } from "./maxima";

/** Names and numbers of a device besides the columns. */
export interface DeviceNames {
  name: string;
  capacity: number; // 0: unknown
  lost: number; // entries that the ring buffer dropped
  sampled: boolean; // the allocations are a sample, for which no device reserves memory
  streams: string[]; // names of the queues
  largest_free: number; // of the blocks at the end
  strings: string[];
  sites: string[];
  spans: string[]; // names of the program's ranges, one after another and by name
  ranges: string[];
}

/** What a report contains of a device. */
export interface DeviceData extends DeviceNames {
  layout: Layout;
  packed: string;
}

export interface Frame {
  file: string;
  name: string;
  line: number;
}

export interface Segment {
  address: number;
  nbytes: number;
  queue: number;
  pool: number;
  growing: number; // 1: a run of mapped pages of an expandable segment
}

export interface SegmentChange extends Segment {
  moment: number;
  sign: number;
}

export interface Oom {
  moment: number;
  wanted: number;
  free: number;
  stack: number;
}

/** A part of the history that the program named. */
export interface NamedSpan {
  name: number; // row of `data.spans`
  kind: number;
  begin: number; // moments
  end: number;
  begin_ns: number; // since the first entry
  end_ns: number;
  lane: number;
  color: number;
}

/** Memory in all spans of one name. */
export interface RangeUse {
  name: number; // row of `data.ranges`
  times: number;
  peak: number;
  at: number;
  allocated: number;
  growth: number; // of one, on average
}

const MAX_FRAMES = 500; // that are shown of a stack
const SEGMENT = ["address", "nbytes", "queue", "pool", "growing"] as const;

export class History {
  readonly moments: number;
  readonly time: Float64Array; // nanoseconds since the first entry, never decreasing
  /** Allocations, one row each, by `start`. A row is live at moment m if start <= m < end. */
  readonly start: Int32Array;
  readonly end: Int32Array;
  readonly nbytes: Float64Array;
  readonly stack: Int32Array; // -1: allocated before the history, stack unknown
  readonly addresses: Float64Array; // distinct, ascending
  readonly rank: Int32Array; // of the address among `addresses`
  readonly queue: Int32Array; // row of `data.streams`
  readonly pool: Int32Array;
  readonly allocated: Float64Array; // at each moment
  readonly reserved: Float64Array;
  readonly peak: number;
  readonly allocatedMaxima: BlockMaxima;
  readonly reservedMaxima: BlockMaxima;
  readonly stackParent: Int32Array;
  readonly siteOfStack: Int32Array; // the last element is for stack -1
  readonly segments: Segment[]; // at the end
  readonly changes: SegmentChange[];
  readonly pending: { address: number; nbytes: number }[]; // freed, but still in use by the device at the end
  readonly ooms: Oom[];
  readonly spans: NamedSpan[];
  readonly ranges: RangeUse[];
  private readonly stackFrame: Int32Array;
  private readonly frames: { file: Int32Array; name: Int32Array; line: Float64Array };
  private readonly live: LiveIndex;

  constructor(
    readonly data: DeviceNames,
    columns: Columns,
  ) {
    this.time = columns.numbers("time");
    this.moments = this.time.length;
    for (let m = 1; m < this.moments; m++) if (this.time[m] < this.time[m - 1]) this.time[m] = this.time[m - 1];
    this.start = columns.integers("start");
    this.end = columns.integers("lifetime");
    for (let row = 0; row < this.end.length; row++) this.end[row] += this.start[row];
    this.nbytes = columns.lookedUp("nbytes");
    this.stack = Int32Array.from(columns.lookedUp("stack"));
    this.addresses = columns.numbers("address.table");
    this.rank = columns.integers("address");
    this.queue = columns.integers("queue");
    this.pool = columns.integers("pool");
    this.stackParent = columns.integers("stack.parent");
    this.stackFrame = columns.integers("stack.frame");
    this.siteOfStack = columns.integers("stack.site");
    const [file, name] = [columns.integers("frame.file"), columns.integers("frame.name")];
    this.frames = { file, name, line: columns.numbers("frame.line") };
    this.segments = columns.records("segment", SEGMENT);
    this.changes = columns.records("change", [...SEGMENT, "moment", "sign"]);
    this.pending = columns.records("pending", ["address", "nbytes"]);
    this.ooms = columns.records("oom", ["moment", "wanted", "free", "stack"]);
    this.spans = columns.records("span", ["name", "kind", "begin", "end", "begin_ns", "end_ns", "lane", "color"]);
    this.ranges = columns.records("range", ["name", "times", "peak", "at", "allocated", "growth"]);
    this.allocated = this.sumAllocations();
    this.reserved = data.sampled ? this.allocated : this.sumSegments();
    this.limit();
    this.allocatedMaxima = new BlockMaxima(this.allocated);
    this.reservedMaxima = new BlockMaxima(this.reserved);
    this.live = new LiveIndex(this.start, this.end, this.moments);
    this.peak = this.allocatedMaxima.where(0, this.moments);
  }

  static async read(data: DeviceData): Promise<History> {
    return new History(data, await PackedColumns.read(data.layout, data.packed));
  }

  get count(): number {
    return this.start.length;
  }

  /** Call `action` with each allocation that is live at some moment of [first, last], in order of their start. */
  eachWithin(first: number, last: number, action: (row: number) => void): void {
    this.live.each(first, last, action);
  }

  liveAt(moment: number): number[] {
    const rows: number[] = [];
    this.eachWithin(moment, moment, (row) => rows.push(row));
    return rows;
  }

  momentAtTime(time: number): number {
    return Math.max(0, upperBound(this.time, time) - 1);
  }

  /** Return the time at a place between two moments, in proportion. */
  timeAt(place: number): number {
    const before = Math.floor(place);
    const after = Math.min(before + 1, this.moments - 1);
    return this.time[before] + (place - before) * (this.time[after] - this.time[before]);
  }

  /** Return the place between two moments at a time, of which `timeAt` returns that time. */
  placeAtTime(time: number): number {
    const before = this.momentAtTime(time);
    if (before + 1 >= this.moments) return before;
    return before + Math.max(0, (time - this.time[before]) / (this.time[before + 1] - this.time[before]));
  }

  address(row: number): number {
    return this.addresses[this.rank[row]];
  }

  site(stack: number): number {
    return this.siteOfStack[stack < 0 ? this.siteOfStack.length - 1 : stack];
  }

  siteName(site: number): string {
    return this.data.sites[site];
  }

  /** The innermost frame of a stack. */
  frame(stack: number): Frame {
    const row = this.stackFrame[stack];
    const { file, name, line } = this.frames;
    return { file: this.data.strings[file[row]], name: this.data.strings[name[row]], line: line[row] };
  }

  /** The innermost frames of a stack, innermost first. */
  framesOf(stack: number): Frame[] {
    const found: Frame[] = [];
    for (let at = stack; at > 0 && found.length < MAX_FRAMES; at = this.stackParent[at]) found.push(this.frame(at));
    return found;
  }

  streamName(queue: number): string {
    return `stream ${this.data.streams[queue]}`;
  }

  poolName(pool: number): string {
    return pool ? `private pool ${pool}` : "default pool";
  }

  private sumAllocations(): Float64Array {
    const sums = new Float64Array(this.moments + 1);
    const { start, end, nbytes } = this;
    for (let row = 0; row < start.length; row++) {
      sums[start[row]] += nbytes[row];
      if (end[row] <= this.moments) sums[end[row]] -= nbytes[row];
    }
    for (let m = 1; m < sums.length; m++) sums[m] += sums[m - 1];
    return sums.subarray(0, this.moments);
  }

  /** Limit totals to what exists: a history with missing frees would have more allocated than its segments hold. */
  private limit(): void {
    const { allocated, reserved, data } = this;
    if (data.capacity) for (let m = 0; m < this.moments; m++) if (reserved[m] > data.capacity) reserved[m] = data.capacity;
    if (data.sampled || (!this.segments.length && !this.changes.length)) return;
    for (let m = 0; m < this.moments; m++) if (allocated[m] > reserved[m]) allocated[m] = reserved[m];
  }

  /** Sum the segments backwards from the end, which is exact. */
  private sumSegments(): Float64Array {
    const sums = new Float64Array(this.moments);
    let sum = this.segments.reduce((total, { nbytes }) => total + nbytes, 0);
    let m = this.moments - 1;
    for (let i = this.changes.length - 1; i >= 0; i--) {
      const { moment, sign, nbytes } = this.changes[i];
      while (m >= moment) sums[m--] = Math.max(0, sum);
      sum -= sign * nbytes;
    }
    while (m >= 0) sums[m--] = Math.max(0, sum);
    return sums;
  }
}
