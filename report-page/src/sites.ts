/** The table of sites: live at the chosen moment and at the peak, and totals of the whole history. */

import { button, make, section } from "./dom";
import { bytes, count, duration } from "./format";
import type { History } from "./history";
import type { Layers } from "./layers";
import { search } from "./search";
import type { Change, State } from "./state";
import { SortedTable } from "./table";

const COLUMNS = ["site", "now", "blocks", "at peak", "allocations", "churn", "lifetime"];
const NOTE =
  "A site is the innermost line of the program that caused an allocation. Now: at the chosen moment. Churn: bytes of " +
  "all its allocations in this history. Lifetime: the mean of those that were freed. Choose a site to search for it.";

interface Total {
  allocations: number;
  bytes: number;
  lifetime: number;
  freed: number;
  peak: number;
}

export class Sites {
  readonly element: HTMLElement;
  private readonly table = new SortedTable(COLUMNS, 3);
  private readonly totals: Total[];

  constructor(
    private readonly history: History,
    private readonly change: Change,
  ) {
    const { card, body } = section("sites", "Sites", NOTE);
    body.append(this.table.element);
    this.element = card;
    this.totals = siteTotals(history);
  }

  render(state: State, layers: Layers): void {
    const { history } = this;
    const now = liveBySite(history, state.moment);
    const shown = new Set<number>();
    if (state.search) {
      const matches = search(history, state.search);
      for (let row = 0; row < history.count; row++) if (matches(row)) shown.add(history.site(history.stack[row]));
    }
    this.table.show(
      this.totals.flatMap((total, site) => {
        if (!total.allocations && !total.peak && !now[site].bytes) return [];
        if (state.search && !shown.has(site)) return [];
        const name = history.siteName(site);
        const lifetime = total.freed ? total.lifetime / total.freed : -1;
        const layer = state.color === "site" ? layers.names.indexOf(name) : -1;
        const key = make("i", { class: layer < 0 ? "key" : `key k${layer}` });
        const chosen = button(name, `Search for ${name}`, () => this.change({ search: name }));
        return [
          [
            [name, make("span", {}, key, chosen)],
            [now[site].bytes, bytes(now[site].bytes)],
            [now[site].count, count(now[site].count)],
            [total.peak, bytes(total.peak)],
            [total.allocations, count(total.allocations)],
            [total.bytes, bytes(total.bytes)],
            [lifetime, lifetime < 0 ? make("span", { title: "none was freed" }, "—") : duration(lifetime)],
          ],
        ];
      }),
    );
  }
}

/** Return the live bytes and blocks of each site at a moment. */
export function liveBySite(history: History, moment: number): { bytes: number; count: number }[] {
  const found = history.data.sites.map(() => ({ bytes: 0, count: 0 }));
  for (const row of history.liveAt(moment)) {
    const site = found[history.site(history.stack[row])];
    site.bytes += history.nbytes[row];
    site.count++;
  }
  return found;
}

function siteTotals(history: History): Total[] {
  const { start, end, nbytes, time, moments, peak } = history;
  const totals = history.data.sites.map(() => ({ allocations: 0, bytes: 0, lifetime: 0, freed: 0, peak: 0 }));
  for (let row = 0; row < history.count; row++) {
    const total = totals[history.site(history.stack[row])];
    if (start[row] <= peak && peak < end[row]) total.peak += nbytes[row];
    if (!start[row]) continue; // allocated before the history
    total.allocations++;
    total.bytes += nbytes[row];
    if (end[row] >= moments) continue;
    total.freed++;
    total.lifetime += time[end[row]] - time[start[row]];
  }
  return totals;
}
