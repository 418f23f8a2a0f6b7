/** Memory in the ranges that the program named, by name. */

import { button, section } from "./dom";
import { bytes, change as signed, count } from "./format";
import type { History } from "./history";
import type { Change } from "./state";
import { type Cell, SortedTable } from "./table";

const COLUMNS = ["range", "times", "peak inside", "allocated in all", "change in each"];

/** Return the section, or null if the program named none. */
export function rangeSection(history: History, change: Change): HTMLElement | null {
  if (!history.ranges.length) return null;
  const { card, body } = section("ranges", "Ranges that the program named");
  const table = new SortedTable(COLUMNS, 2);
  table.show(
    history.ranges.map(({ name, times, peak, at, allocated, growth }): Cell[] => {
      const text = history.data.ranges[name];
      return [
        [text, button(text, `Show the peak inside ${text}`, () => change({ moment: at, row: -1 }))],
        [times, count(times)],
        [peak, bytes(peak)],
        [allocated, bytes(allocated)],
        [growth, signed(growth)],
      ];
    }),
  );
  body.append(table.element);
  return card;
}
