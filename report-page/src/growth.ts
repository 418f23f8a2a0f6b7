/** Growth of each site between the marked moments A and B. */

import { button, figure, make, section } from "./dom";
import { bytes, change as signed, count, countChange } from "./format";
import type { History } from "./history";
import { liveBySite } from "./sites";
import type { Change, State } from "./state";
import { type Cell, SortedTable } from "./table";

const HINT = "Mark two moments: drag with Shift on the chart, or press a and b at the chosen moment.";

export class Growth {
  readonly element: HTMLElement;
  private readonly note = make("p", { class: "note", "aria-live": "polite" });
  private readonly table = new SortedTable(["site", "growth", "blocks", "at A", "at B"], 1);

  constructor(
    private readonly history: History,
    change: Change,
  ) {
    const { card, body, tools } = section("growth", "Growth between two moments");
    tools.append(button("Clear", "Remove the marks A and B", () => change({ a: -1, b: -1 })));
    body.append(this.note, this.table.element);
    this.element = card;
  }

  render({ a, b }: State): void {
    const { history, table, note } = this;
    table.element.hidden = a < 0 || b < 0;
    if (a < 0 || b < 0) {
      note.textContent = HINT;
      return;
    }
    const [before, after] = [liveBySite(history, a), liveBySite(history, b)];
    const rows = before.flatMap((old, site): Cell[][] => {
      const now = after[site];
      if (old.bytes === now.bytes && old.count === now.count) return [];
      const name = history.siteName(site);
      return [
        [
          [name, name],
          [now.bytes - old.bytes, signed(now.bytes - old.bytes)],
          [now.count - old.count, countChange(now.count - old.count)],
          [old.bytes, bytes(old.bytes)],
          [now.bytes, bytes(now.bytes)],
        ],
      ];
    });
    const grown = history.allocated[b] - history.allocated[a];
    note.replaceChildren(
      `From entry ${count(a)} to entry ${count(b)}: `,
      figure(grown, signed(grown)),
      history.data.sampled ? " allocated, estimated." : ` allocated, ${signed(history.reserved[b] - history.reserved[a])} reserved.`,
    );
    table.show(rows);
  }
}
