/** Free memory in segments at a moment: how much there is, and the largest piece. */

import type { History } from "./history";
import type { SegmentTable } from "./segment-table";

const ROUNDING = 512; // bytes: the size of a block is a multiple

export interface FreeMemory {
  reserved: number;
  largest: number;
}

export class Fragments {
  private readonly size: Float64Array; // of the live allocation at each address, by rank

  constructor(
    private readonly history: History,
    private readonly table: SegmentTable,
  ) {
    this.size = new Float64Array(history.addresses.length);
  }

  at(moment: number): FreeMemory {
    const { history, size } = this;
    const { addresses, nbytes, rank } = history;
    const live = Int32Array.from(history.liveAt(moment), (row) => {
      size[rank[row]] = nbytes[row];
      return rank[row];
    }).sort();
    let [reserved, largest, next] = [0, 0, 0];
    for (const segment of this.table.at(moment)) {
      const end = segment.address + segment.nbytes;
      reserved += segment.nbytes;
      let free = segment.address;
      while (next < live.length && addresses[live[next]] < segment.address) next++;
      for (; next < live.length && addresses[live[next]] < end; next++) {
        const address = addresses[live[next]];
        largest = Math.max(largest, address - free);
        free = Math.max(free, address + Math.ceil(size[live[next]] / ROUNDING) * ROUNDING);
      }
      largest = Math.max(largest, end - free);
    }
    if (moment === history.moments - 1) largest = history.data.largest_free; // exact: sizes of blocks are known
    return { reserved, largest };
  }
}

/** The share of free memory that is not in the largest free block. */
export function fragmentation(largest: number, free: number): number {
  return free > 0 ? 1 - Math.min(largest, free) / free : 0;
}
