/** Finds the allocations that are live within a range of moments, without a look at all earlier ones. */

const MOST_STATES = 256;
const MOST_ROWS = 4_000_000; // of all kept states together

export class LiveIndex {
  private readonly step: number; // moments from one kept state to the next
  private readonly states: Int32Array[] = []; // rows that are live at moments 0, step, 2 * step, ...

  /** `start` is ascending; a row is live at moment m if start <= m < end. */
  constructor(
    private readonly start: Int32Array,
    private readonly end: Int32Array,
    moments: number,
  ) {
    const fine = Math.max(1, Math.ceil(moments / MOST_STATES));
    const changes = new Int32Array(Math.ceil((moments + 2) / fine) + 1);
    for (let row = 0; row < start.length; row++) {
      changes[Math.ceil(start[row] / fine)]++;
      changes[Math.ceil(end[row] / fine)]--;
    }
    let [live, most] = [0, 1];
    for (const by of changes) most = Math.max(most, (live += by));
    this.step = fine * Math.ceil((MOST_STATES * most) / MOST_ROWS);
    let rows: number[] = [];
    let next = 0;
    for (let moment = 0; moment < moments; moment += this.step) {
      rows = rows.filter((row) => end[row] > moment);
      for (; next < start.length && start[next] <= moment; next++) if (end[next] > moment) rows.push(next);
      this.states.push(Int32Array.from(rows));
    }
  }

  /** Call `action` with each row that is live at some moment of [first, last], ascending. */
  each(first: number, last: number, action: (row: number) => void): void {
    const { start, end, step } = this;
    const state = Math.floor(first / step);
    for (const row of this.states[state]) if (end[row] > first) action(row);
    const stop = upperBound(start, last);
    for (let row = upperBound(start, state * step); row < stop; row++) if (end[row] > first) action(row);
  }
}

/** Return the number of elements of an ascending array that are at most `value`. */
export function upperBound(values: ArrayLike<number>, value: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
