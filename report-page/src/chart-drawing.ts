/** Draws a picture with its axes, the free memory above the allocations, and the marks over it. */

import { clock, count, shortBytes, ticks } from "./format";
import type { Picture } from "./picture";
import type { Raster } from "./raster";
import type { State } from "./state";
import type { Theme } from "./theme";

export const LEFT = 74; // margins in CSS pixels
export const RIGHT = 12;
export const ABOVE = 24;
export const BELOW = 26;
const MAX_OOMS = 50; // marks

/** Largest free block of some columns: each is valid up to the next. */
export type Largest = [column: number, bytes: number][];

export class Sheet {
  readonly context: CanvasRenderingContext2D | null;
  width = 0;
  height = 0;
  ratio = 1;

  constructor(
    readonly canvas: HTMLCanvasElement,
    private readonly theme: Theme,
  ) {
    this.context = canvas.getContext("2d");
  }

  /** Clear the canvas and adapt it to its size on the page. */
  clear(): CanvasRenderingContext2D | null {
    const { canvas, context } = this;
    this.ratio = devicePixelRatio || 1;
    [this.width, this.height] = [canvas.clientWidth, canvas.clientHeight];
    const [width, height] = [Math.round(this.width * this.ratio), Math.round(this.height * this.ratio)];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    context?.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context?.clearRect(0, 0, this.width, this.height);
    if (context) context.font = `12px ${getComputedStyle(canvas).fontFamily}`;
    return context;
  }

  color(name: string): string {
    return this.theme.color(name);
  }

  line(x: number, y: number, toX: number, toY: number): void {
    this.context?.beginPath();
    this.context?.moveTo(x, y);
    this.context?.lineTo(toX, toY);
    this.context?.stroke();
  }
}

/** Draw everything that depends on the window only. */
export function drawPicture(sheet: Sheet, picture: Picture, raster: Raster, theme: Theme, pinned: number, largest: Largest): void {
  const context = sheet.clear();
  if (!context) return;
  const y = heights(sheet, picture);
  context.strokeStyle = sheet.color("grid");
  context.fillStyle = sheet.color("soft");
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of ticks(0, picture.top, 6, true).values) {
    sheet.line(LEFT, y(value), sheet.width - RIGHT, y(value));
    context.fillText(shortBytes(value), LEFT - 8, y(value));
  }
  drawFree(sheet, picture, largest);
  const box = new DOMRect(LEFT, ABOVE, picture.columns, sheet.height - ABOVE - BELOW);
  raster.draw(picture, theme, pinned, context, box, Math.round(box.height * sheet.ratio));
  context.beginPath();
  for (let column = 0; column < picture.columns; column++) {
    const level = y(picture.reserved[column]);
    context.lineTo(LEFT + column, level);
    context.lineTo(LEFT + column + 1, level);
  }
  context.strokeStyle = sheet.color("ink");
  context.lineWidth = 1.75;
  context.stroke();
  if (picture.limit) drawLimit(sheet, y(picture.limit), picture.limit);
  drawTimes(sheet, picture);
}

/** Draw the chosen moment, marks and events. */
export function drawMarks(sheet: Sheet, picture: Picture, state: State, hovered: number): void {
  const context = sheet.clear();
  if (!context) return;
  const { history } = picture;
  if (state.a >= 0 && state.b >= 0) shade(sheet, picture, Math.min(state.a, state.b), Math.max(state.a, state.b));
  const flags = new Flags(sheet, picture);
  if (state.a >= 0) flags.draw(state.a, "A", "accent");
  if (state.b >= 0) flags.draw(state.b, "B", "accent");
  for (const { moment } of history.ooms.slice(-MAX_OOMS)) flags.draw(moment, "out of memory", "alarm");
  flags.draw(history.peak, "peak", "ink", [4, 3]);
  if (history.data.lost && state.from === 0) flags.draw(0, "older entries are lost", "soft");
  flags.draw(state.moment, "", "accent");
  if (hovered >= 0) {
    context.strokeStyle = sheet.color("ink");
    context.lineWidth = 1;
    sheet.line(LEFT + hovered + 0.5, ABOVE, LEFT + hovered + 0.5, sheet.height - BELOW);
  }
}

/** Return the function from bytes to a vertical position. */
function heights(sheet: Sheet, picture: Picture): (value: number) => number {
  const height = sheet.height - ABOVE - BELOW;
  return (value) => ABOVE + height * (1 - value / picture.top);
}

function drawTimes(sheet: Sheet, picture: Picture): void {
  const { context } = sheet;
  if (!context) return;
  const [low, high] = [picture.valueAt(0), picture.valueAt(1)];
  const { step, values } = ticks(low, high, Math.max(2, sheet.width / 130));
  context.fillStyle = sheet.color("soft");
  context.strokeStyle = sheet.color("soft");
  context.lineWidth = 1;
  context.textBaseline = "top";
  context.textAlign = "center";
  const bottom = sheet.height - BELOW;
  sheet.line(LEFT, bottom, sheet.width - RIGHT, bottom);
  for (const value of values) {
    const x = LEFT + ((value - low) / (high - low)) * picture.columns;
    const text = picture.window.axis === "time" ? clock(value, step) : count(value);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(x, LEFT + half), sheet.width - half), bottom + 8);
    sheet.line(x, bottom, x, bottom + 4);
  }
}

/** Draw free memory in segments: the largest free block plain, the rest hatched. */
function drawFree(sheet: Sheet, picture: Picture, largest: Largest): void {
  const { context } = sheet;
  if (!context) return;
  const y = heights(sheet, picture);
  const hatched = hatch(context, sheet.color("fragment"), sheet.color("free"));
  let next = 0;
  for (let column = 0; column < picture.columns; column++) {
    while (next + 1 < largest.length && largest[next + 1][0] <= column) next++;
    const from = picture.history.allocated[picture.moments[column]];
    const to = picture.reserved[column];
    if (to <= from) continue;
    const middle = largest.length ? Math.min(to, from + largest[next][1]) : to;
    context.fillStyle = sheet.color("free");
    context.fillRect(LEFT + column, y(middle), 1, y(from) - y(middle));
    context.fillStyle = hatched;
    context.fillRect(LEFT + column, y(to), 1, y(middle) - y(to));
  }
}

function hatch(context: CanvasRenderingContext2D, line: string, ground: string): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const drawing = tile.getContext("2d");
  if (!drawing) return ground;
  drawing.fillStyle = ground;
  drawing.fillRect(0, 0, 6, 6);
  drawing.strokeStyle = line;
  drawing.lineWidth = 1.2;
  drawing.beginPath();
  for (const shift of [-6, 0, 6]) {
    drawing.moveTo(shift, 6);
    drawing.lineTo(shift + 6, 0);
  }
  drawing.stroke();
  return context.createPattern(tile, "repeat") ?? ground;
}

function drawLimit(sheet: Sheet, at: number, capacity: number): void {
  const { context } = sheet;
  if (!context) return;
  context.save();
  context.strokeStyle = context.fillStyle = sheet.color("alarm");
  context.setLineDash([2, 4]);
  sheet.line(LEFT, at, sheet.width - RIGHT, at);
  context.textAlign = "left";
  context.textBaseline = "bottom";
  context.fillText(`device: ${shortBytes(capacity)}`, LEFT + 4, at - 2);
  context.restore();
}

/** Tint the range between the marked moments. */
function shade(sheet: Sheet, picture: Picture, from: number, to: number): void {
  const { context } = sheet;
  if (!context) return;
  const [left, right] = [from, to].map((moment) => Math.max(0, Math.min(1, picture.fractionOf(moment))) * picture.columns);
  context.save();
  context.globalAlpha = 0.14;
  context.fillStyle = sheet.color("accent");
  context.fillRect(LEFT + left, ABOVE, right - left, sheet.height - ABOVE - BELOW);
  context.restore();
}

/** Vertical lines with labels. A label that would overlap an earlier one is left out. */
class Flags {
  private readonly taken: [from: number, to: number][] = [];

  constructor(
    private readonly sheet: Sheet,
    private readonly picture: Picture,
  ) {}

  draw(moment: number, text: string, color: string, dash: number[] = []): void {
    const { sheet, picture } = this;
    const { context } = sheet;
    const at = picture.fractionOf(moment);
    if (!context || at < 0 || at > 1) return;
    const x = LEFT + at * picture.columns;
    context.save();
    context.strokeStyle = context.fillStyle = sheet.color(color);
    context.lineWidth = 1.5;
    context.setLineDash(dash);
    sheet.line(x, ABOVE - 4, x, sheet.height - BELOW);
    const width = context.measureText(text).width;
    const from = at > 0.8 ? x - width - 4 : x + 4;
    if (text && this.taken.every(([low, high]) => from > high || from + width < low)) {
      context.textBaseline = "bottom";
      context.fillText(text, from, ABOVE - 6);
      this.taken.push([from - 6, from + width + 6]);
    }
    context.restore();
  }
}
