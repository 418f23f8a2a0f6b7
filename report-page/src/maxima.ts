/** Maxima of blocks of an array: the level of detail that keeps a search over a million numbers short. */

const SIZE = 256;

export class BlockMaxima {
  private readonly rows: Int32Array; // of the maximum of each block

  constructor(private readonly values: Float64Array) {
    this.rows = new Int32Array(Math.ceil(values.length / SIZE));
    for (let block = 0; block < this.rows.length; block++) {
      this.rows[block] = this.scan(block * SIZE, Math.min(values.length, (block + 1) * SIZE));
    }
  }

  /** Return the first row with the largest value of [first, end), or `first` if there is none. */
  where(first: number, end: number): number {
    const { values, rows } = this;
    const [low, high] = [Math.ceil(first / SIZE), Math.floor(end / SIZE)];
    if (low >= high) return this.scan(first, end);
    let best = this.scan(first, low * SIZE);
    for (let block = low; block < high; block++) if (values[rows[block]] > values[best]) best = rows[block];
    const rest = high * SIZE < end ? this.scan(high * SIZE, end) : best;
    return values[rest] > values[best] ? rest : best;
  }

  private scan(first: number, end: number): number {
    const { values } = this;
    let best = first;
    for (let row = first + 1; row < end; row++) if (values[row] > values[best]) best = row;
    return best;
  }
}
