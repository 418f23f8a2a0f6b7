/** The flame graph: which stacks held memory at a moment or over a range. */

import { button, choice, make, section } from "./dom";
import { bytes, count, percentage, sourceLine } from "./format";
import type { History } from "./history";
import type { State } from "./state";

const ROW = 21; // pixels
const NARROWEST = 0.0015; // share of the width
const MOST = 3000; // bars
const HINT =
  "The outermost function is at the top. Choose a bar to enlarge it; the arrow keys move between bars.";
const MODES = {
  live: "live at the moment",
  mean: "mean from A to B",
  allocated: "allocated from A to B",
  growth: "grown from A to B",
};
type Mode = keyof typeof MODES;

interface Bar {
  stack: number;
  depth: number;
  from: number;
  width: number;
}

export class FlameGraph {
  readonly element: HTMLElement;
  private mode: Mode = "live";
  private root = 0; // the enlarged stack
  private state: State | null = null;
  private bars: Bar[] = [];
  private readonly body = make("div", { class: "flame" });
  private readonly note = make("p", { class: "note", "aria-live": "polite" });

  constructor(private readonly history: History) {
    const { card, tools, body } = section("flame-graph", "Flame graph");
    const modes = choice("Show", MODES, this.mode, (mode) => {
      this.mode = mode as Mode;
      this.draw();
    });
    tools.append(modes.label, button("All", "Show all stacks", () => this.focus(0)));
    body.append(this.note, this.body);
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    this.element = card;
  }

  render(state: State): void {
    this.state = state;
    this.draw();
  }

  private focus(stack: number): void {
    this.root = stack;
    this.draw();
  }

  private draw(): void {
    if (!this.state) return;
    const { totals, unknown, text } = this.sum(this.state);
    const bars = this.layout(totals);
    const depth = bars.reduce((deepest, bar) => Math.max(deepest, bar.depth), 0) + 1;
    this.body.style.height = `${bars.length ? depth * ROW : 0}px`;
    this.bars = bars;
    this.body.replaceChildren(...bars.map((bar, i) => this.bar(bar, totals, i ? "-1" : "0")));
    const missing = unknown ? `; ${bytes(unknown)} without a stack` : "";
    this.note.textContent = `${bytes(totals[0])} ${text}${missing}. ${HINT}`;
  }

  /** Sum the bytes of each stack with all stacks that it calls. */
  private sum(state: State): { totals: Float64Array; unknown: number; text: string } {
    const { history, mode } = this;
    const { stackParent, stack, nbytes, start, end, time } = history;
    const totals = new Float64Array(stackParent.length);
    let unknown = 0;
    const add = (row: number, factor: number) => {
      if (stack[row] > 0) totals[stack[row]] += factor * nbytes[row];
      else unknown += factor * nbytes[row];
    };
    // Without marks, the range is what the chart shows.
    const [a, b] = [state.a < 0 ? Math.floor(state.from) : state.a, state.b < 0 ? Math.ceil(state.to) : state.b];
    if (mode === "live") for (const row of history.liveAt(state.moment)) add(row, 1);
    else if (mode === "growth") {
      for (const row of history.liveAt(b)) add(row, 1);
      for (const row of history.liveAt(a)) add(row, -1);
    } else if (mode === "allocated") {
      history.eachWithin(a, b, (row) => start[row] > a && add(row, 1));
    } else {
      const length = Math.max(1, time[b] - time[a]);
      history.eachWithin(a, b, (row) => {
        const [from, to] = [Math.max(a, start[row]), Math.min(b, end[row])];
        add(row, (time[to] - time[from]) / length);
      });
    }
    for (let at = 0; at < totals.length; at++) totals[at] = Math.max(0, totals[at]);
    for (let at = totals.length - 1; at > 0; at--) totals[stackParent[at]] += totals[at];
    const text = mode === "live" ? `at entry ${count(state.moment)}` : `from entry ${count(a)} to ${count(b)}`;
    return { totals, unknown: Math.max(0, unknown), text };
  }

  private layout(totals: Float64Array): Bar[] {
    const { stackParent } = this.history;
    const children = new Map<number, number[]>();
    for (let stack = 1; stack < totals.length; stack++) {
      if (totals[stack] <= 0) continue;
      const siblings = children.get(stackParent[stack]);
      if (siblings) siblings.push(stack);
      else children.set(stackParent[stack], [stack]);
    }
    if (this.root && totals[this.root] <= 0) this.root = 0;
    const whole = totals[this.root];
    if (whole <= 0) return [];
    const bars: Bar[] = [{ stack: this.root, depth: 0, from: 0, width: 1 }];
    for (let i = 0; i < bars.length && bars.length < MOST; i++) {
      const { stack, depth, from } = bars[i];
      let left = from;
      for (const child of (children.get(stack) ?? []).sort((x, y) => totals[y] - totals[x] || x - y)) {
        const width = totals[child] / whole;
        if (width < NARROWEST) break;
        bars.push({ stack: child, depth: depth + 1, from: left, width });
        left += width;
      }
    }
    return bars;
  }

  /** Move the focus to the caller, the largest callee, or the neighbor of a bar: only one bar is reached with Tab. */
  private onKey(event: KeyboardEvent): void {
    const { bars, body } = this;
    const at = [...body.children].indexOf(document.activeElement as Element);
    const current = bars[at];
    if (!current) return;
    const { depth, from, width } = current;
    const within = (bar: Bar) => bar.from + bar.width / 2 >= from && bar.from + bar.width / 2 <= from + width;
    const around = (bar: Bar) => bar.from <= from + width / 2 && from + width / 2 <= bar.from + bar.width;
    const beside = bars[at + (event.key === "ArrowLeft" ? -1 : 1)];
    const moves: Record<string, () => number> = {
      ArrowUp: () => bars.findIndex((bar) => bar.depth === depth - 1 && around(bar)),
      ArrowDown: () => bars.findIndex((bar) => bar.depth === depth + 1 && within(bar)),
      ArrowLeft: () => (beside?.depth === depth ? at - 1 : -1),
      ArrowRight: () => (beside?.depth === depth ? at + 1 : -1),
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    (body.children[move()] as HTMLElement | undefined)?.focus();
  }

  private bar({ stack, depth, from, width }: Bar, totals: Float64Array, tabindex: string): HTMLElement {
    const { file, name, line } = stack ? this.history.frame(stack) : { file: "", name: "all", line: 0 };
    const share = `${bytes(totals[stack])}, ${percentage(totals[stack] / totals[0])}`;
    const label = `${name} ${file ? `${sourceLine(file, line)} ` : ""}(${share})`;
    const attributes = { type: "button", title: label, "aria-label": label, class: `bar f${shade(file)}`, tabindex };
    const element = make("button", attributes, name);
    element.style.cssText = `left:${100 * from}%;width:${100 * width}%;top:${depth * ROW}px;height:${ROW - 1}px`;
    // Choosing the enlarged stack again shows its caller.
    element.addEventListener("click", () => this.focus(stack === this.root ? this.history.stackParent[stack] : stack));
    return element;
  }
}

/** Return one of six colors for a file. */
function shade(file: string): number {
  let hash = 0;
  for (const character of file) hash = (hash * 31 + (character.codePointAt(0) ?? 0)) % 9973;
  return hash % 6;
}
