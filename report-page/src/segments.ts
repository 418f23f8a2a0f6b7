/** The segments and their blocks at the chosen moment, each as wide as its size. */

import { make, section, showTip } from "./dom";
import { bytes, count, duration, hex, plural } from "./format";
import type { History, Segment } from "./history";
import type { Layers } from "./layers";
import type { SegmentTable } from "./segment-table";
import type { Change, State } from "./state";
import type { Theme } from "./theme";

const HEIGHT = 18; // pixels of a segment
const GAP = 3;
const LINES = 24; // of the drawing, at least
const MOST = 2000; // segments drawn
const NOTE = "Each bar is a segment of device memory; its width shows its size, and pale parts are free.";

interface Drawn {
  segment: Segment;
  rows: number[]; // live allocations, by address
  x: number;
  y: number;
}

export class Segments {
  readonly element: HTMLElement;
  private readonly canvas = make("canvas", { role: "img", "aria-label": "Segments and their blocks" });
  private readonly tip = make("div", { class: "tip", hidden: "" });
  private readonly note = make("p", { class: "note", "aria-live": "polite" });
  private readonly scrub: HTMLInputElement;
  private drawn: Drawn[] = [];
  private scale = 1; // bytes per pixel
  private state: State | null = null;
  private layers: Layers | null = null;

  constructor(
    private readonly history: History,
    private readonly table: SegmentTable,
    private readonly theme: Theme,
    private readonly change: Change,
  ) {
    const { card, body } = section("segments", "Segments and blocks", NOTE);
    const range = { type: "range", min: "0", max: String(history.moments - 1), step: "1" };
    this.scrub = make("input", { ...range, "aria-label": "The chosen moment, in entries of the history" });
    this.scrub.disabled = history.moments < 2;
    this.scrub.addEventListener("input", () => change({ moment: Number(this.scrub.value), row: -1 }));
    body.append(this.scrub, this.note, this.canvas, this.tip);
    this.element = card;
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("click", (event) => this.pin(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    theme.watch(() => this.draw());
  }

  render(state: State, layers: Layers): void {
    this.state = state;
    this.layers = layers;
    this.scrub.value = String(state.moment);
    const { time } = this.history;
    this.scrub.setAttribute("aria-valuetext", `entry ${count(state.moment)}, ${duration(time[state.moment])}`);
    this.draw();
  }

  private draw(): void {
    const { canvas, state, layers, history, theme } = this;
    const context = canvas.getContext("2d");
    const width = canvas.clientWidth;
    if (!state || !layers || !context || !width) return;
    this.arrange(state.moment, width);
    const { drawn } = this;
    const height = this.place(width);
    const ratio = devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const { segment, rows, x, y } of drawn) {
      context.fillStyle = theme.color("free");
      context.fillRect(x, y, this.width(segment), HEIGHT);
      for (const row of rows) {
        const left = x + (history.address(row) - segment.address) / this.scale;
        const size = history.nbytes[row] / this.scale;
        context.fillStyle = theme.color(`c${Math.min(9, layers.of[row])}`);
        context.fillRect(left, y, Math.max(0.5, size > 3 ? size - 0.75 : size), HEIGHT);
        if (row !== state.row) continue;
        context.strokeStyle = theme.color("ink");
        context.lineWidth = 2;
        context.strokeRect(left, y + 1, Math.max(2, size), HEIGHT - 2);
      }
      if (state.moment < history.moments - 1) continue;
      context.fillStyle = theme.color("soft");
      for (const { address, nbytes } of history.pending) {
        if (address < segment.address || address >= segment.address + segment.nbytes) continue;
        context.fillRect(x + (address - segment.address) / this.scale, y, Math.max(0.5, nbytes / this.scale), HEIGHT);
      }
    }
  }

  /** Find the segments to draw, with their allocations, and describe all. */
  private arrange(moment: number, width: number): void {
    const { history } = this;
    const segments = this.table.at(moment);
    const live = history.liveAt(moment).sort((a, b) => history.rank[a] - history.rank[b]);
    let next = 0;
    const all = segments.map((segment): Drawn => {
      const rows: number[] = [];
      while (next < live.length && history.address(live[next]) < segment.address) next++;
      while (next < live.length && history.address(live[next]) < segment.address + segment.nbytes) rows.push(live[next++]);
      return { segment, rows, x: 0, y: 0 };
    });
    const reserved = segments.reduce((sum, { nbytes }) => sum + nbytes, 0);
    const used = all.reduce((sum, { rows }) => sum + rows.reduce((part, row) => part + history.nbytes[row], 0), 0);
    const blocks = all.reduce((sum, { rows }) => sum + rows.length, 0);
    const pending = moment === history.moments - 1 ? history.pending.length : 0;
    this.note.textContent =
      `At entry ${count(moment)}: ${plural(segments.length, "segment")}, ${bytes(reserved)} reserved, ${bytes(used)} in ` +
      `${plural(blocks, "block")}, ${bytes(Math.max(0, reserved - used))} free in segments.` +
      (pending ? ` ${plural(pending, "block")} in grey: freed, but still in use by the device.` : "") +
      (all.length > MOST ? ` The ${count(all.length - MOST)} smallest are not drawn.` : "");
    this.drawn = all
      .sort((a, b) => b.segment.nbytes - a.segment.nbytes || a.segment.address - b.segment.address)
      .slice(0, MOST);
    this.scale = Math.max(1, this.drawn[0]?.segment.nbytes ?? 1, reserved / LINES) / width;
  }

  /** Place the segments in lines, and return the height of all. */
  private place(width: number): number {
    let [x, y] = [0, 0];
    for (const each of this.drawn) {
      const size = this.width(each.segment);
      if (x && x + size > width) [x, y] = [0, y + HEIGHT + GAP];
      [each.x, each.y] = [x, y];
      x += size + GAP;
    }
    return y + HEIGHT;
  }

  private width(segment: Segment): number {
    return Math.max(2, segment.nbytes / this.scale);
  }

  private find(event: MouseEvent): { drawn: Drawn; row: number } | null {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const drawn = this.drawn.find((each) => each.y <= y && y < each.y + HEIGHT && each.x <= x && x < each.x + this.width(each.segment));
    if (!drawn) return null;
    const address = drawn.segment.address + (x - drawn.x) * this.scale;
    const { history } = this;
    const row = drawn.rows.find((each) => history.address(each) <= address && address < history.address(each) + history.nbytes[each]);
    return { drawn, row: row ?? -1 };
  }

  private pin(event: MouseEvent): void {
    const found = this.find(event);
    if (found) this.change({ row: found.row });
  }

  private hover(event: PointerEvent): void {
    const found = this.find(event);
    if (!found) {
      this.tip.hidden = true;
      return;
    }
    const { history } = this;
    const { segment, rows } = found.drawn;
    const kind = segment.growing ? "expandable segment" : "segment";
    const place = `${history.streamName(segment.queue)}, ${history.poolName(segment.pool)}`;
    const lines = [
      make("strong", {}, `${kind} ${hex(segment.address)}`),
      make("div", {}, `${bytes(segment.nbytes)}, ${place}, ${plural(rows.length, "block")}`),
    ];
    if (found.row < 0) lines.push(make("div", {}, "free"));
    else {
      lines.push(make("div", {}, `${bytes(history.nbytes[found.row])} at ${hex(history.address(found.row))}`));
      lines.push(make("div", {}, history.siteName(history.site(history.stack[found.row]))));
    }
    showTip(this.tip, event.clientX, event.clientY, ...lines);
  }
}
