/** A snapshot as tables: the rows of forebay/records/model.py, in 32-bit words. */

const HALF = 2 ** 32;

/** Structured rows of equal size. A 64-bit column is two words, the low half first. */
export class Table {
  readonly words: Uint32Array<ArrayBuffer>;
  readonly long: BigUint64Array<ArrayBuffer>;

  constructor(
    readonly count: number,
    readonly width: number,
    words?: Uint32Array<ArrayBuffer>,
  ) {
    this.words = words ?? new Uint32Array(count * width);
    this.long = new BigUint64Array(this.words.buffer, 0, this.words.length >> 1);
  }

  get(row: number, word: number): number {
    return this.words[row * this.width + word];
  }

  set(row: number, word: number, value: number): void {
    this.words[row * this.width + word] = value;
  }

  /** Return a 64-bit number, which is exact below 2^53. */
  number(row: number, word: number): number {
    const at = row * this.width + word;
    return this.words[at] + HALF * this.words[at + 1];
  }

  big(row: number, word: number): bigint {
    return this.long[(row * this.width + word) >> 1];
  }

  setBig(row: number, word: number, value: bigint): void {
    this.long[(row * this.width + word) >> 1] = value;
  }

  /** Return the rows in another order, or some of them. */
  taken(rows: ArrayLike<number>): Table {
    const { width } = this;
    const found = new Table(rows.length, width);
    for (let i = 0; i < rows.length; i++) {
      found.words.set(this.words.subarray(rows[i] * width, (rows[i] + 1) * width), i * width);
    }
    return found;
  }
}

export const SEGMENT = { address: 0, nbytes: 2, queue: 4, stack: 6, small: 7, pool: 8, growing: 9, width: 10 };
export const BLOCK = { address: 0, nbytes: 2, requested: 4, stack: 6, segment: 7, state: 8, width: 10 };
export const ENTRY = { time: 0, address: 2, nbytes: 4, queue: 6, stack: 8, action: 9, pool: 10, note: 11, width: 12 };

export const ALLOC = 1;
export const FREE_REQUESTED = 2;
export const RESERVE = 4;
export const RELEASE = 5;
export const OOM = 6;
export const MAP = 7;
export const UNMAP = 8;
export const MOST_ACTION = 10;
export const FREE = 0;
export const PENDING_FREE = 2;

/** The stack tree: rows from 1, a parent before its children; row 0 is the empty stack. */
export interface Stacks {
  parent: Uint32Array;
  frame: Uint32Array;
  /** Three numbers for each frame: rows of `strings` for the file and the name, and the line. */
  frames: Uint32Array;
  strings: string[];
}

export interface Snapshot extends Stacks {
  device: string;
  capacity: number;
  takenAt: number; // nanoseconds since 1970, rounded
  segments: Table;
  blocks: Table;
  trace: Table;
  lost: number;
  stats: Record<string, number>;
  notes: Record<string, unknown>;
  labels: [context: string, own: string][];
}
