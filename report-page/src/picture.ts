/**
 * What the chart draws of a window of the history: for each column of pixels one moment, the bytes of each layer, and
 * the allocations that are large enough to be drawn as bands of their own.
 *
 * The moment of a column is that with the most allocated bytes, so that no peak disappears. The work is bounded by the
 * number of allocations within the window plus the number of pixels.
 */

import type { History } from "./history";
import { LAYERS, type Layers } from "./layers";
import type { Axis } from "./state";

export interface Window {
  from: number;
  to: number;
  axis: Axis;
}

const HEADROOM = 1.03; // free space above the highest value
const MIN_BAND = 1.5; // pixels: smaller allocations are drawn together

/** Return the time or entry at the edges of a window, which may lie between two entries. */
export function bounds(history: History, { from, to, axis }: Window): [low: number, high: number] {
  const [low, high] = axis === "time" ? [history.timeAt(from), history.timeAt(to)] : [from, to];
  return [low, Math.max(high, low + 1)];
}

export class Picture {
  readonly moments: Int32Array; // of each column
  readonly reserved: Float64Array; // the maximum within each column
  readonly small: Float64Array[]; // bytes of allocations without a band, by layer and column
  /** Allocations with a band, by start: rows, and their first and last column. */
  readonly bands: { rows: Int32Array; first: Int32Array; end: Int32Array };
  readonly limit: number; // capacity of the device if it is near the drawn values, else 0
  readonly top: number; // bytes at the upper edge
  private readonly low: number;
  private readonly high: number;

  constructor(
    readonly history: History,
    readonly window: Window,
    readonly layers: Layers,
    readonly columns: number,
    readonly height: number, // in pixels
  ) {
    [this.low, this.high] = bounds(history, window);
    this.moments = new Int32Array(columns);
    this.reserved = new Float64Array(columns);
    this.chooseMoments();
    let top = 1;
    for (let c = 0; c < columns; c++) top = Math.max(top, this.reserved[c], history.allocated[this.moments[c]]);
    const { capacity } = history.data;
    this.limit = capacity >= top && capacity <= 1.5 * top ? capacity : 0;
    this.top = Math.max(top, this.limit) * HEADROOM;
    this.small = Array.from({ length: LAYERS }, () => new Float64Array(columns + 1));
    this.bands = this.addAllocations();
  }

  /** Return the last moment at a fraction of the width. */
  momentAt(fraction: number): number {
    const value = this.valueAt(fraction);
    const moment = this.window.axis === "time" ? this.history.momentAtTime(value) : Math.floor(value);
    return Math.max(0, Math.min(this.history.moments - 1, moment));
  }

  fractionOf(moment: number): number {
    const value = this.window.axis === "time" ? this.history.time[moment] : moment;
    return (value - this.low) / (this.high - this.low);
  }

  /** Return the time or entry at a fraction of the width. */
  valueAt(fraction: number): number {
    return this.low + fraction * (this.high - this.low);
  }

  /**
   * Call `action` for the areas of all columns, from left to right and from bottom to top: a band, whose row is given,
   * or the allocations of a layer that have no band (row -1).
   */
  eachArea(action: (column: number, layer: number, row: number, from: number, to: number) => void): void {
    const { bands, layers, columns, small } = this;
    const { nbytes } = this.history;
    const live: number[][] = Array.from({ length: LAYERS }, () => []); // bands of the column, by start
    let next = 0;
    for (let column = 0; column < columns; column++) {
      for (; next < bands.rows.length && bands.first[next] <= column; next++) {
        live[layers.of[bands.rows[next]]].push(next);
      }
      const most = this.history.allocated[this.moments[column]];
      let height = 0;
      const add = (size: number) => (height = Math.min(most, height + size));
      for (const layer of layers.stacking) {
        const inLayer = live[layer];
        let kept = 0;
        for (const band of inLayer) {
          if (bands.end[band] <= column) continue;
          inLayer[kept++] = band;
          const row = bands.rows[band];
          action(column, layer, row, height, add(nbytes[row]));
        }
        inLayer.length = kept;
        const rest = small[layer][column];
        if (rest > 0) action(column, layer, -1, height, add(rest));
      }
    }
  }

  /** Return the allocation that is drawn at a height in bytes; -1 if there is none. */
  rowAt(column: number, height: number): number {
    const { history, layers } = this;
    const moment = this.moments[column];
    const threshold = this.threshold;
    const byLayer: number[][] = Array.from({ length: LAYERS }, () => []);
    for (const row of history.liveAt(moment)) byLayer[layers.of[row]].push(row);
    let sum = 0;
    for (const layer of layers.stacking) {
      for (const banded of [true, false]) {
        for (const row of byLayer[layer]) {
          if (history.nbytes[row] >= threshold !== banded) continue;
          sum += history.nbytes[row];
          if (height < sum) return height < 0 ? -1 : row;
        }
      }
    }
    return -1;
  }

  private get threshold(): number {
    return (MIN_BAND * this.top) / this.height;
  }

  private chooseMoments(): void {
    const { allocatedMaxima, reservedMaxima, reserved } = this.history;
    let from = Math.floor(this.window.from);
    for (let column = 0; column < this.columns; column++) {
      const to = Math.max(from + 1, this.momentAt((column + 1) / this.columns));
      this.moments[column] = allocatedMaxima.where(from, to);
      this.reserved[column] = reserved[reservedMaxima.where(from, to)];
      from = Math.max(from, this.momentAt((column + 1) / this.columns));
    }
  }

  private addAllocations(): Picture["bands"] {
    const { columns, moments, history, layers, small, threshold } = this;
    const { start, end, nbytes } = history;
    const [first, last] = [moments[0], moments[columns - 1]];
    // The first column whose moment is not before a given one.
    const columnOf = new Int32Array(last - first + 1);
    for (let column = 0, m = first; column < columns; column++) while (m <= moments[column]) columnOf[m++ - first] = column;
    const rows: number[] = [];
    const from: number[] = [];
    const until: number[] = [];
    history.eachWithin(first, last, (row) => {
      const begin = start[row] <= first ? 0 : columnOf[start[row] - first];
      const stop = end[row] > last ? columns : columnOf[end[row] - first];
      if (begin === stop) return; // between two drawn moments
      if (nbytes[row] >= threshold) {
        rows.push(row);
        from.push(begin);
        until.push(stop);
      } else {
        small[layers.of[row]][begin] += nbytes[row];
        small[layers.of[row]][stop] -= nbytes[row];
      }
    });
    for (const layer of small) for (let column = 1; column < columns; column++) layer[column] += layer[column - 1];
    return { rows: Int32Array.from(rows), first: Int32Array.from(from), end: Int32Array.from(until) };
  }
}
