/** Private pools and streams at the chosen moment. */

import { section } from "./dom";
import { bytes, count } from "./format";
import type { History } from "./history";
import type { SegmentTable } from "./segment-table";
import type { State } from "./state";
import { type Cell, SortedTable } from "./table";

export class Pools {
  readonly element: HTMLElement;
  private readonly table = new SortedTable(["pool", "stream", "reserved", "allocated", "blocks"], 2);

  constructor(
    private readonly history: History,
    private readonly segments: SegmentTable,
  ) {
    const { card, body } = section("pools", "Pools and streams", "Memory of each private pool and stream at the chosen moment.");
    body.append(this.table.element);
    this.element = card;
    const { pool, segments: last, data } = history;
    card.hidden = data.streams.length < 2 && !pool.some((number) => number > 0) && !last.some((segment) => segment.pool > 0);
  }

  render({ moment }: State): void {
    const { history } = this;
    const groups = new Map<string, { pool: number; queue: number; reserved: number; live: number; blocks: number }>();
    const group = (pool: number, queue: number) => {
      const key = `${pool} ${queue}`;
      let found = groups.get(key);
      if (!found) groups.set(key, (found = { pool, queue, reserved: 0, live: 0, blocks: 0 }));
      return found;
    };
    for (const { pool, queue, nbytes } of this.segments.at(moment)) group(pool, queue).reserved += nbytes;
    for (const row of history.liveAt(moment)) {
      const found = group(history.pool[row], history.queue[row]);
      found.live += history.nbytes[row];
      found.blocks++;
    }
    this.table.show(
      [...groups.values()].map(({ pool, queue, reserved, live, blocks }): Cell[] => [
        [pool, history.poolName(pool)],
        [queue, history.data.streams[queue]],
        [reserved, bytes(reserved)],
        [live, bytes(live)],
        [blocks, count(blocks)],
      ]),
    );
  }
}
