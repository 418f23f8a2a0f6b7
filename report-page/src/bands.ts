/** The ranges that the program named, as bands below the chart: a click shows one of them. */

import { LEFT, RIGHT, Sheet } from "./chart-drawing";
import { make, showTip, tipRow } from "./dom";
import { bytes, count, duration } from "./format";
import type { History, NamedSpan } from "./history";
import { bounds } from "./picture";
import type { Change, State } from "./state";
import type { Theme } from "./theme";

const HEIGHT = 18; // of a lane, in CSS pixels
const GAP = 2;
const LETTER = 4; // pixels: no letter is narrower on average
const KINDS = ["record_function or profiler", "user_metadata", "compile_context"];
const LABEL = "Ranges that the program named. Click one to show it; the table of ranges below has them as text.";

export class Bands {
  readonly element: HTMLElement;
  private readonly canvas = make("canvas", { role: "img", "aria-label": LABEL });
  private readonly tip = make("div", { class: "tip", role: "status", hidden: "" });
  private readonly sheet: Sheet;
  private state: State | null = null;

  constructor(
    private readonly history: History,
    theme: Theme,
    private readonly change: Change,
  ) {
    const { canvas } = this;
    this.sheet = new Sheet(canvas, theme);
    this.element = make("div", { class: "bands" }, canvas, this.tip);
    const lanes = history.spans.reduce((most, span) => Math.max(most, span.lane + 1), 0);
    this.element.hidden = !lanes;
    canvas.style.height = `${lanes * HEIGHT}px`;
    new ResizeObserver(() => this.draw()).observe(canvas);
    theme.watch(() => this.draw());
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("click", (event) => this.choose(event));
  }

  render(state: State): void {
    const { state: before } = this;
    const same = before && state.from === before.from && state.to === before.to && state.axis === before.axis;
    this.state = state;
    if (!same) this.draw();
  }

  private draw(): void {
    const { state, history, sheet } = this;
    if (!state || this.element.hidden) return;
    const context = sheet.clear();
    if (!context) return;
    context.textBaseline = "middle";
    const right = sheet.width - RIGHT;
    for (const span of history.spans) {
      const [from, to] = this.place(span, state);
      if (to < LEFT || from > right) continue;
      const [x, end] = [Math.max(LEFT, from), Math.min(right, to)];
      const width = Math.max(1, end - x - 1);
      const y = span.lane * HEIGHT;
      context.fillStyle = sheet.color(`f${span.color}`);
      context.fillRect(x, y, width, HEIGHT - GAP);
      const text = fitted(context, history.data.spans[span.name], width - 8);
      context.fillStyle = sheet.color("ink");
      context.fillText(text, x + 4, y + (HEIGHT - GAP) / 2 + 1);
    }
  }

  /** Return the horizontal positions of a span's beginning and end, in CSS pixels. */
  private place(span: NamedSpan, state: State): [number, number] {
    const [low, high] = bounds(this.history, state);
    const byTime = state.axis === "time";
    const [begin, end] = byTime ? [span.begin_ns, span.end_ns] : [span.begin, span.end];
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    const at = (value: number) => LEFT + ((value - low) / Math.max(high - low, 1)) * width;
    return [at(begin), at(end)];
  }

  private under(event: MouseEvent): NamedSpan | undefined {
    const { state, history } = this;
    if (!state) return undefined;
    const box = this.canvas.getBoundingClientRect();
    const [x, lane] = [event.clientX - box.left, Math.floor((event.clientY - box.top) / HEIGHT)];
    return history.spans.find((span) => {
      const [from, to] = this.place(span, state);
      return span.lane === lane && from <= x && x <= Math.max(to, from + 2);
    });
  }

  private hover(event: PointerEvent): void {
    const span = this.under(event);
    this.canvas.style.cursor = span ? "pointer" : "";
    if (!span) {
      this.tip.hidden = true;
      return;
    }
    const { history } = this;
    const [before, after] = [history.allocated[span.begin], history.allocated[span.end]];
    showTip(
      this.tip,
      event.clientX,
      event.clientY,
      make("strong", {}, history.data.spans[span.name]),
      tipRow("", KINDS[span.kind], duration(span.end_ns - span.begin_ns)),
      tipRow("", "entries", `${count(span.begin)} to ${count(span.end)}`),
      tipRow("", "allocated before", bytes(before)),
      tipRow("", "allocated after", bytes(after)),
    );
  }

  private choose(event: MouseEvent): void {
    const span = this.under(event);
    if (!span) return;
    const { history } = this;
    const last = history.moments - 1;
    const to = Math.min(last, Math.max(span.end, span.begin + 1));
    this.change({ from: Math.min(span.begin, to), to, moment: history.allocatedMaxima.where(span.begin, to + 1), row: -1 });
  }
}

/** Return a name, or what fits of it: its number, or its beginning; "" if nothing does. */
function fitted(context: CanvasRenderingContext2D, name: string, width: number): string {
  if (width < 2 * LETTER) return "";
  const fits = (text: string) => context.measureText(text).width <= width;
  const whole = name.length * LETTER <= width && fits(name);
  if (whole) return name;
  const number = /#?\d{1,9}$/.exec(name)?.[0] ?? "";
  if (number) return fits(number) ? number : "";
  let length = Math.min(name.length, Math.floor(width / LETTER));
  while (length > 2 && !fits(`${name.slice(0, length)}…`)) length--;
  return length > 2 ? `${name.slice(0, length)}…` : "";
}
