/** Reader of the compressed integer columns that forebay/snapshot/report/page/columns.py writes. */

/** For each column in order: how many numbers, bytes per number, and 1 if they are differences. */
export type Layout = Record<string, [count: number, width: number, steps: number]>;

/** Named columns of integers. */
export abstract class Columns {
  abstract numbers(name: string): Float64Array;
  abstract integers(name: string): Int32Array;

  /** Return a column of few distinct integers, which may be stored as a table and rows of it. */
  abstract lookedUp(name: string): Float64Array;

  /** Return columns of equal length as one object per row. */
  records<Key extends string>(group: string, keys: readonly Key[]): Record<Key, number>[] {
    const columns = keys.map((key) => this.numbers(`${group}.${key}`));
    const rows = Array.from({ length: columns[0].length }, () => ({}) as Record<Key, number>);
    keys.forEach((key, k) => rows.forEach((row, i) => (row[key] = columns[k][i])));
    return rows;
  }
}

/** Columns in memory. */
export class PlainColumns extends Columns {
  constructor(private readonly columns: Record<string, Float64Array | Int32Array>) {
    super();
  }

  override numbers(name: string): Float64Array {
    const column = this.columns[name];
    return column instanceof Float64Array ? column : Float64Array.from(column);
  }

  override integers(name: string): Int32Array {
    const column = this.columns[name];
    return column instanceof Int32Array ? column : Int32Array.from(column);
  }

  override lookedUp(name: string): Float64Array {
    return this.numbers(name);
  }
}

/** The compressed columns of a report. */
export class PackedColumns extends Columns {
  private readonly offsets = new Map<string, number>();

  constructor(
    private readonly layout: Layout,
    private readonly bytes: Uint8Array,
  ) {
    super();
    let offset = 0;
    for (const [name, [count, width]] of Object.entries(layout)) {
      this.offsets.set(name, offset);
      offset += count * width;
    }
    if (offset !== bytes.length) throw new Error(`the page's data has ${bytes.length} bytes instead of ${offset}`);
  }

  /** Decompress the columns from base64 text. */
  static async read(layout: Layout, packed: string): Promise<PackedColumns> {
    const text = atob(packed);
    const compressed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) compressed[i] = text.charCodeAt(i);
    const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new PackedColumns(layout, new Uint8Array(await new Response(stream).arrayBuffer()));
  }

  override numbers(name: string): Float64Array {
    return this.decode(name, new Float64Array(this.layout[name][0]));
  }

  override integers(name: string): Int32Array {
    return this.decode(name, new Int32Array(this.layout[name][0]));
  }

  override lookedUp(name: string): Float64Array {
    const table = this.numbers(`${name}.table`);
    const rows = this.integers(name);
    const found = new Float64Array(rows.length);
    for (let i = 0; i < rows.length; i++) found[i] = table[rows[i]];
    return found;
  }

  private decode<Numbers extends Float64Array | Int32Array>(name: string, found: Numbers): Numbers {
    const [count, width, steps] = this.layout[name];
    const start = this.offsets.get(name) ?? 0;
    const { bytes } = this;
    let value = 0;
    for (let i = 0; i < count; i++) {
      let number = 0; // the bytes of one number are `count` apart, the least significant first
      for (let at = start + (width - 1) * count + i; at >= start; at -= count) number = number * 256 + bytes[at];
      const signed = number % 2 ? -(number + 1) / 2 : number / 2; // 0, 1, 2, 3, 4 stand for 0, -1, 1, -2, 2
      value = steps ? value + signed : signed;
      found[i] = value;
    }
    return found;
  }
}
