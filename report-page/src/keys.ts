/** Keys of the chart, and the list of them. */

import type { Chart } from "./chart";
import { button, make } from "./dom";
import type { History } from "./history";
import type { Change, State } from "./state";

const KEYS: [keys: string, effect: string][] = [
  ["← →", "choose the previous or next drawn moment; with Shift, one entry"],
  ["↑ ↓", "pin the allocation above or below at the chosen moment"],
  ["Page Up, Page Down", "move the window"],
  ["Home, End", "choose the first or last moment of the window"],
  ["+ −", "zoom around the chosen moment"],
  ["0", "show the whole history"],
  ["p", "choose the peak"],
  ["o", "choose the next out-of-memory event"],
  ["a, b", "mark the chosen moment as A or B, for growth and flame graphs"],
  ["Escape", "unpin, and remove the marks"],
  ["/", "search"],
  ["?", "show this list"],
];
const POINTER: [keys: string, effect: string][] = [
  ["click", "choose the moment and pin the allocation"],
  ["drag", "move the window; with Shift, mark A and B"],
  ["wheel", "zoom, while the chart has the focus or with Ctrl"],
  ["double click", "show the whole history"],
];

export function keyActions(
  chart: Chart,
  history: History,
  state: State,
  change: Change,
  shift: boolean,
): Record<string, () => void> {
  const { moment } = state;
  const last = history.moments - 1;
  const choose = (chosen: number) => change({ moment: Math.max(0, Math.min(last, chosen)), row: -1 });
  const zoomed = Math.max(0, Math.min(1, chart.fractionOf(moment)));
  return {
    ArrowLeft: () => (shift ? choose(moment - 1) : chart.step(-1)),
    ArrowRight: () => (shift ? choose(moment + 1) : chart.step(1)),
    ArrowUp: () => chart.stepRow(1),
    ArrowDown: () => chart.stepRow(-1),
    PageUp: () => chart.pan(-0.5),
    PageDown: () => chart.pan(0.5),
    Home: () => choose(Math.ceil(state.from)),
    End: () => choose(Math.floor(state.to)),
    "+": () => chart.zoom(0.5, zoomed),
    "=": () => chart.zoom(0.5, zoomed),
    "-": () => chart.zoom(2, zoomed),
    "0": () => change({ from: 0, to: last }),
    p: () => choose(history.peak),
    o: () => {
      const next = history.ooms.find((oom) => oom.moment > moment) ?? history.ooms[0];
      if (next) choose(next.moment);
    },
    a: () => change({ a: moment }),
    b: () => change({ b: moment }),
    Escape: () => change({ row: -1, a: -1, b: -1 }),
  };
}

/** The list of keys, and the button that opens it. */
export class KeyHelp {
  readonly dialog: HTMLDialogElement;
  readonly button = button("Keys ?", "Show the list of keys", () => this.show());

  constructor() {
    const rows = [...KEYS, ...POINTER].map(([keys, effect]) =>
      make("tr", {}, make("td", {}, make("kbd", {}, keys)), make("td", {}, effect)),
    );
    const close = button("Close", "Close the list of keys", () => this.dialog.close());
    const table = make("table", {}, make("tbody", {}, ...rows));
    const heading = make("h2", {}, "Keys of the chart");
    this.dialog = make("dialog", { class: "keys", "aria-label": "Keys" }, heading, table, close);
    addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === "?" && !typing) this.show();
    });
  }

  private show(): void {
    if (!this.dialog.open) this.dialog.showModal();
  }
}
