/** The chart of memory over time: zoom, pan, tooltips, and the choice of a moment and an allocation. */

import { ABOVE, BELOW, drawMarks, drawPicture, type Largest, LEFT, RIGHT, Sheet } from "./chart-drawing";
import { make, showTip, tipRow } from "./dom";
import { bytes, count, duration, percentage, sourceLine } from "./format";
import { fragmentation, type Fragments } from "./fragments";
import type { History } from "./history";
import { keyActions } from "./keys";
import type { Layers } from "./layers";
import { bounds, Picture } from "./picture";
import { Raster } from "./raster";
import type { Change, State } from "./state";
import type { Theme } from "./theme";

const MIN_ENTRIES = 8; // of a window
const MIN_TIME = 100; // nanoseconds of a window
const DECIMALS = 1e9; // of an edge between two entries, in the address
const TIP_FRAMES = 12;
const SAMPLES = 160; // of the largest free block
const SAMPLED_ROWS = 1_500_000; // allocations that all samples together may visit
const DRAG = 3; // pixels: a shorter movement is a click
const LABEL = "Memory over time. Arrow keys move the chosen moment; press question mark for all keys.";

export class Chart {
  readonly element: HTMLElement;
  readonly canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": LABEL });
  private readonly over = make("canvas", { class: "over", "aria-hidden": "true" });
  private readonly tip = make("div", { class: "tip", role: "status", hidden: "" });
  private readonly legend = make("ul", { class: "legend" });
  private readonly raster = new Raster();
  private readonly sheet: Sheet;
  private readonly marks: Sheet;
  private state: State; // as drawn
  private picture: Picture | null = null;
  private largest: Largest = [];
  private hovered = -1;
  private pointer: PointerEvent | WheelEvent | null = null; // over the chart
  private drag: { x: number; moved: boolean; marks: boolean } | null = null;

  constructor(
    private readonly history: History,
    private readonly fragments: Fragments,
    private readonly theme: Theme,
    private readonly current: () => State, // which changes before it is drawn
    private layers: Layers,
    private readonly change: Change,
  ) {
    this.state = current();
    const { canvas, over } = this;
    this.sheet = new Sheet(canvas, theme);
    this.marks = new Sheet(over, theme);
    this.element = make("div", { class: "chart" }, make("div", { class: "field" }, canvas, over), this.legend, this.tip);
    new ResizeObserver(() => this.redraw()).observe(canvas);
    theme.watch(() => this.redraw());
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointercancel", () => (this.drag = null));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("blur", () => this.leave());
    canvas.addEventListener("dblclick", () => this.change({ from: 0, to: history.moments - 1 }));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.showLegend();
  }

  render(state: State, layers: Layers): void {
    const { state: before } = this;
    const same = state.from === before.from && state.to === before.to && state.axis === before.axis;
    const sameLayers = layers === this.layers;
    this.state = state;
    this.layers = layers;
    if (!sameLayers) this.showLegend();
    if (!same || !sameLayers || !this.picture) this.redraw();
    else if (state.row !== before.row) this.paint();
    else this.paintMarks();
  }

  /** Compute what takes too long for each frame: the largest free block over time. */
  refine(): void {
    const { picture, history } = this;
    if (!picture || this.largest.length) return;
    const live = history.liveAt(picture.moments[picture.columns >> 1]).length + history.segments.length + 100;
    const samples = Math.max(8, Math.min(SAMPLES, Math.floor(SAMPLED_ROWS / live)));
    const step = Math.max(1, Math.ceil(picture.columns / samples));
    for (let column = 0; column < picture.columns; column += step) {
      this.largest.push([column, this.fragments.at(picture.moments[column]).largest]);
    }
    this.paint();
  }

  /** Show `factor` times as much, with a fraction of the width staying in place, unless the history ends before. */
  zoom(factor: number, fraction = 0.5): void {
    const state = this.current();
    const [low, high] = bounds(this.history, state);
    const least = state.axis === "time" ? MIN_TIME : MIN_ENTRIES;
    const width = Math.max((high - low) * factor, Math.min(high - low, least));
    const begin = low + fraction * (high - low - width);
    this.show(begin, begin + width);
  }

  /** Move the window by a share of its width. */
  pan(share: number): void {
    const { history } = this;
    const state = this.current();
    const last = history.moments - 1;
    const [low, high] = bounds(history, state);
    const [first, end] = state.axis === "time" ? [history.time[0], history.time[last]] : [0, last];
    const by = Math.max(first - low, Math.min(end - high, share * (high - low)));
    this.show(low + by, high + by);
  }

  /** Choose the drawn moment that is a number of columns from the chosen one. */
  step(columns: number): void {
    const { picture, history } = this;
    if (!picture) return;
    const state = this.current();
    const { moments } = picture;
    const found = moments.findIndex((moment) => moment >= state.moment);
    const column = (found < 0 ? moments.length - 1 : found) + columns;
    const near = moments[Math.max(0, Math.min(moments.length - 1, column))];
    const moment = columns > 0 ? Math.max(state.moment + 1, near) : Math.min(state.moment - 1, near);
    this.change({ moment: Math.max(0, Math.min(history.moments - 1, moment)), row: -1 });
  }

  /** Pin the allocation above or below the pinned one at the chosen moment. */
  stepRow(by: number): void {
    const { history, layers } = this;
    const state = this.current();
    const position = layers.stacking.reduce<number[]>((all, layer, at) => ((all[layer] = at), all), []);
    const rows = history.liveAt(state.moment).sort((a, b) => position[layers.of[a]] - position[layers.of[b]] || a - b);
    if (!rows.length) return;
    const at = rows.indexOf(state.row);
    const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by));
    this.change({ row: rows[next] });
  }

  fractionOf(moment: number): number {
    const state = this.current();
    const [low, high] = bounds(this.history, state);
    return ((state.axis === "time" ? this.history.time[moment] : moment) - low) / (high - low);
  }

  private show(low: number, high: number): void {
    const { history } = this;
    const state = this.current();
    const last = history.moments - 1;
    const byTime = state.axis === "time";
    const place = (value: number) => (byTime ? history.placeAtTime(value) : value);
    const edge = (value: number) => Math.max(0, Math.min(last, Math.round(place(value) * DECIMALS) / DECIMALS));
    const from = edge(low);
    const to = Math.max(from, edge(high));
    if (from !== state.from || to !== state.to) this.change({ from, to });
  }

  private redraw(): void {
    const { canvas, history, state, layers } = this;
    const columns = canvas.clientWidth - LEFT - RIGHT;
    const height = canvas.clientHeight - ABOVE - BELOW;
    if (columns < 10 || height < 10) return;
    const { from, to, axis } = state;
    this.picture = new Picture(history, { from, to, axis }, layers, columns, height);
    this.largest = [];
    if (this.pointer && !this.drag?.moved) this.hover(this.pointer); // it is over another moment now
    this.paint();
  }

  private paint(): void {
    if (this.picture) drawPicture(this.sheet, this.picture, this.raster, this.theme, this.state.row, this.largest);
    this.paintMarks();
  }

  private paintMarks(): void {
    if (this.picture) drawMarks(this.marks, this.picture, this.state, this.hovered);
  }

  private showLegend(): void {
    const { names, stacking } = this.layers;
    const shown = [...stacking].reverse().filter((layer) => names[layer]);
    const entries: [string, string][] = shown.map((layer) => [`k${layer}`, names[layer]]);
    if (!this.history.data.sampled) {
      entries.unshift(["line", "reserved"], ["fragmented", "free in smaller blocks"], ["free", "largest free block"]);
    }
    const items = entries.map(([key, name]) =>
      make("li", {}, make("i", { class: `key ${key}` }), make("span", { title: name }, name)),
    );
    this.legend.replaceChildren(...items);
  }

  /** Return the column and the height in bytes at a position in the window. */
  private at(clientX: number, clientY: number): { column: number; fraction: number; height: number } {
    const box = this.canvas.getBoundingClientRect();
    const columns = this.picture?.columns ?? 1;
    const across = clientX - box.left - LEFT;
    const column = Math.max(0, Math.min(columns - 1, Math.floor(across)));
    const share = 1 - (clientY - box.top - ABOVE) / (box.height - ABOVE - BELOW);
    return { column, fraction: Math.max(0, Math.min(1, across / columns)), height: share * (this.picture?.top ?? 1) };
  }

  private onWheel(event: WheelEvent): void {
    // Without focus the wheel scrolls the page.
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / 800);
    else {
      const amount = Math.max(-300, Math.min(300, event.deltaY));
      this.zoom(Math.exp(amount / 400), this.at(event.clientX, event.clientY).fraction);
    }
  }

  private onDown(event: PointerEvent): void {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.clientX, moved: false, marks: event.shiftKey };
  }

  private onMove(event: PointerEvent): void {
    const { picture, drag } = this;
    if (!picture) return;
    if (drag && Math.abs(event.clientX - drag.x) > DRAG) drag.moved = true;
    if (!drag?.moved) {
      this.hover(event);
      return;
    }
    this.tip.hidden = true;
    if (drag.marks) {
      const [one, other] = [drag.x, event.clientX].map((x) => picture.moments[this.at(x, event.clientY).column]);
      this.change({ a: Math.min(one, other), b: Math.max(one, other) });
    } else {
      this.pan((drag.x - event.clientX) / picture.columns);
      drag.x = event.clientX;
    }
  }

  private onUp(event: PointerEvent): void {
    const { drag, picture } = this;
    this.drag = null;
    if (!drag || drag.moved || !picture) return;
    const { column, height } = this.at(event.clientX, event.clientY);
    this.change({ moment: picture.moments[column], row: picture.rowAt(column, height) });
  }

  private leave(): void {
    this.hovered = -1;
    this.pointer = null;
    this.tip.hidden = true;
    this.paintMarks();
  }

  private hover(event: PointerEvent | WheelEvent): void {
    const { picture, history, layers } = this;
    if (!picture) return;
    this.pointer = event;
    const { column, height } = this.at(event.clientX, event.clientY);
    const moment = picture.moments[column];
    this.hovered = column;
    this.paintMarks();
    const [allocated, reserved] = [history.allocated[moment], history.reserved[moment]];
    const lines: HTMLElement[] = [
      make("strong", {}, `${duration(history.time[moment])} · entry ${count(moment)}`),
      ...(history.data.sampled ? [] : [tipRow("line", "reserved", bytes(reserved))]),
      tipRow("", "allocated", bytes(allocated)),
    ];
    const sample = this.largest.findLast(([from]) => from <= column);
    if (sample && reserved > allocated) {
      const free = reserved - allocated;
      lines.push(tipRow("fragmented", "free, fragmented", `${bytes(free)}, ${percentage(fragmentation(sample[1], free))}`));
    }
    const row = picture.rowAt(column, height);
    if (row >= 0) lines.push(...this.describe(row, `k${layers.of[row]}`));
    this.tip.dataset.row = String(row);
    this.tip.dataset.moment = String(moment);
    showTip(this.tip, event.clientX, event.clientY, ...lines);
  }

  private describe(row: number, key: string): HTMLElement[] {
    const { history } = this;
    const stack = history.stack[row];
    const [start, end] = [history.start[row], history.end[row]];
    const freed = end < history.moments;
    const lifetime = start && freed ? duration(history.time[end] - history.time[start]) : start ? "not freed" : "older";
    const place = `${history.streamName(history.queue[row])}, ${history.poolName(history.pool[row])}`;
    const frames = history.framesOf(stack);
    const lines = frames.slice(0, TIP_FRAMES).map(({ file, name, line }) => frameLine(`${sourceLine(file, line)} ${name}`));
    if (frames.length > TIP_FRAMES) lines.push(frameLine(`and ${frames.length - TIP_FRAMES} more`));
    return [
      tipRow(key, history.siteName(history.site(stack)), bytes(history.nbytes[row])),
      tipRow("", "lifetime", lifetime),
      tipRow("", place, ""),
      ...lines,
    ];
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const action = keyActions(this, this.history, this.current(), this.change, event.shiftKey)[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}

function frameLine(text: string): HTMLElement {
  return make("div", { class: "frame" }, text);
}
