/** The segments at any moment: the final ones, with later changes undone. */

import type { History, Segment, SegmentChange } from "./history";
import { upperBound } from "./live-index";

const MIN_SPACING = 1024; // changes between two kept states

export class SegmentTable {
  /** States of which others are computed: the segments before the change with a number, the latest first. */
  private readonly kept: { change: number; segments: Segment[] }[];
  private readonly moments: Float64Array;

  constructor(private readonly history: History) {
    this.moments = Float64Array.from(history.changes, ({ moment }) => moment);
    this.kept = [{ change: history.changes.length, segments: [...history.segments].sort((a, b) => a.address - b.address) }];
  }

  /** Return the segments at a moment, by address. */
  at(moment: number): Segment[] {
    const changes = upperBound(this.moments, moment);
    let from = this.kept.length - 1;
    while (this.kept[from].change < changes) from--;
    let { change } = this.kept[from];
    let ranges = new Ranges(this.kept[from].segments);
    while (change > changes) {
      ranges.undo(this.history.changes[--change]);
      const last = this.kept.at(-1);
      if (last && last.change - change >= Math.max(MIN_SPACING, ranges.list.length)) {
        this.kept.push({ change, segments: ranges.list });
        ranges = new Ranges(ranges.list);
      }
    }
    return ranges.list;
  }
}

/** Segments by address, which do not overlap. */
class Ranges {
  readonly list: Segment[];

  constructor(segments: Segment[]) {
    this.list = [...segments];
  }

  undo({ address, nbytes, queue, pool, growing, sign }: SegmentChange): void {
    const { list } = this;
    const end = address + nbytes;
    let first = this.firstEndingAfter(address);
    let next = first;
    const remains: Segment[] = []; // of segments that the range overlaps: only expandable ones are changed in part
    for (; next < list.length && list[next].address < end; next++) {
      const other = list[next];
      if (!other.growing || !growing) continue;
      const otherEnd = other.address + other.nbytes;
      if (other.address < address) remains.push({ ...other, nbytes: address - other.address });
      if (otherEnd > end) remains.push({ ...other, address: end, nbytes: otherEnd - end });
    }
    if (sign < 0) {
      remains.push({ address, nbytes, queue, pool, growing });
      remains.sort((a, b) => a.address - b.address);
    }
    list.splice(first, next - first, ...remains);
    // Neighbouring runs of an expandable segment are one.
    first = Math.max(1, first);
    for (let i = Math.min(list.length - 1, first + remains.length); i >= first; i--) {
      const [before, after] = [list[i - 1], list[i]];
      if (!before.growing || !after.growing || before.address + before.nbytes !== after.address) continue;
      if (before.queue !== after.queue || before.pool !== after.pool) continue;
      list.splice(i - 1, 2, { ...before, nbytes: before.nbytes + after.nbytes });
    }
  }

  private firstEndingAfter(address: number): number {
    let [low, high] = [0, this.list.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.list[middle].address + this.list[middle].nbytes <= address) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
