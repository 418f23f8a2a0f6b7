/** The out-of-memory events. */

import { button, section } from "./dom";
import { bytes, count, plural } from "./format";
import type { History } from "./history";
import type { Change } from "./state";
import { type Cell, SortedTable } from "./table";

const COLUMNS = ["moment", "requested", "free on device", "free in segments", "allocated", "site"];

/** Return the section, or null if memory never ran out. */
export function oomSection(history: History, change: Change): HTMLElement | null {
  if (!history.ooms.length) return null;
  const { card, body } = section("ooms", `Out of memory: ${plural(history.ooms.length, "time")}`);
  const table = new SortedTable(COLUMNS, 0);
  table.show(
    history.ooms.map(({ moment, wanted, free, stack }): Cell[] => {
      const allocated = history.allocated[moment];
      const unused = Math.max(0, history.reserved[moment] - allocated);
      const site = history.siteName(history.site(stack));
      return [
        [moment, button(`entry ${count(moment)}`, "Show this moment", () => change({ moment, row: -1 }))],
        [wanted, bytes(wanted)],
        [free, bytes(free)],
        [unused, bytes(unused)],
        [allocated, bytes(allocated)],
        [site, site],
      ];
    }),
  );
  body.append(table.element);
  return card;
}
