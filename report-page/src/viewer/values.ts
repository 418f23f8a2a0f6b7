/** The plain values of a pickle, which the reader keeps: read in place, each container once. */

import type { Module } from "./module";
import { BadSnapshot, require } from "./rules";

/** HistoryKind and BoxKind of native/pickle/values.hpp. */
const [FALSE, TRUE, INT, UNSIGNED, , TEXT, PAIR, BOX] = [1, 2, 3, 4, 5, 6, 7, 8];
const [EMPTY_DICT, EMPTY_LIST, DICT, LIST, TUPLE, , STACK, , ROWS] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/** A value: a number, a text, a flag, a pair of numbers, a container, or something that no rule uses. */
export type Value = bigint | string | boolean | Pair | Dict | List | StackRow | Rows | null | undefined;

export class Pair {
  constructor(readonly row: number) {}
}

export class StackRow {
  constructor(readonly row: number) {}
}

export class Rows {
  constructor(
    readonly first: number,
    readonly count: number,
  ) {}
}

/** The file is a pickle, but not as PyTorch writes it: Python reads more. */
export const ODD = "it is not as PyTorch writes it. Convert it first: forebay convert FILE snapshot.forebay";

export class Dict {
  private readonly places = new Map<string, number>();

  constructor(
    private readonly values: Values,
    keysAndValues: number,
    count: number,
  ) {
    for (let at = 0; at < count; at += 2) {
      const key = values.at(keysAndValues + 16 * at);
      if (typeof key === "string") this.places.set(key, keysAndValues + 16 * (at + 1));
    }
  }

  has(key: string): boolean {
    return this.places.has(key);
  }

  get(key: string): Value {
    const place = this.places.get(key);
    return place === undefined ? undefined : this.values.at(place);
  }
}

export class List {
  constructor(
    private readonly values: Values,
    private readonly place: number,
    readonly length: number,
  ) {}

  get(at: number): Value {
    return this.values.at(this.place + 16 * at);
  }

  *[Symbol.iterator](): Iterator<Value> {
    for (let at = 0; at < this.length; at++) yield this.get(at);
  }
}

export class Values {
  private readonly boxes = new Map<number, Dict | List | Rows>();
  private readonly texts = new Map<number, string>();
  private readonly view: DataView;

  /** Nothing in the module may grow its memory while these values are used. */
  constructor(private readonly module: Module) {
    this.view = new DataView(module.native.memory.buffer);
  }

  root(): Value {
    return this.at(this.module.native.root() >>> 0);
  }

  /** Return the value at a place in the memory of the module. */
  at(place: number): Value {
    const { view } = this;
    const row = view.getUint32(place, true);
    switch (view.getUint8(place + 8)) {
      case FALSE:
        return false;
      case TRUE:
        return true;
      case INT:
        return view.getBigInt64(place, true);
      case UNSIGNED:
        return view.getBigUint64(place, true);
      case TEXT:
        return this.text(row);
      case PAIR:
        return new Pair(row);
      case BOX:
        return this.box(row);
      default:
        return null; // None, and numbers that are not whole
    }
  }

  private text(row: number): string {
    let found = this.texts.get(row);
    if (found === undefined) this.texts.set(row, (found = this.module.text(row)));
    return found;
  }

  /** Return a container, always the same object: a file may refer to it a million times. */
  private box(box: number): Value {
    const known = this.boxes.get(box);
    if (known) return known;
    const { native } = this.module;
    const [kind, row] = [native.box_kind(box), native.box_row(box)];
    if (kind === STACK) return new StackRow(row);
    const made = this.made(kind, row);
    this.boxes.set(box, made);
    return made;
  }

  private made(kind: number, row: number): Dict | List | Rows {
    const { native } = this.module;
    switch (kind) {
      case EMPTY_DICT:
        return new Dict(this, 0, 0);
      case EMPTY_LIST:
        return new List(this, 0, 0);
      case DICT:
        return new Dict(this, native.content(row) >>> 0, native.content_size(row));
      case LIST:
      case TUPLE:
        return new List(this, native.content(row) >>> 0, native.content_size(row));
      case ROWS:
        return new Rows(native.range_first(row) >>> 0, native.range_count(row));
      default:
        throw new BadSnapshot(ODD);
    }
  }
}

export function items(value: Value, what: string): List {
  require(value instanceof List, `${what} are not a list`);
  return value;
}

export function dicts(value: Value, what: string): Dict[] {
  return [...items(value, what)].map((each) => {
    require(each instanceof Dict, `not all of ${what} are dicts`);
    return each;
  });
}

/** Return a number of 64 bits of a row; without a default, the row must have it. */
export function numberOf(row: Dict, key: string, whose: string, missing?: bigint): bigint {
  const value = row.has(key) ? row.get(key) : missing;
  require(value !== undefined, `${whose} ${key} is missing`);
  require(typeof value === "bigint", `${whose} ${key} is not a number`);
  require(value >= 0n && value < 1n << 64n, `${whose} ${key} is out of range`);
  return value;
}

/** Return the code of one word of a row. */
export function codeOf(row: Dict, key: string, codes: Record<string, number>, whose: string, missing?: string): number {
  const word = row.has(key) ? row.get(key) : missing;
  require(word !== undefined, `${whose} ${key} is missing`);
  require(typeof word === "string" && Object.hasOwn(codes, word), `${whose} ${key} is not one of ${Object.keys(codes).join(", ")}`);
  return codes[word];
}

export function flagOf(row: Dict, key: string, whose: string): boolean {
  const value = row.has(key) ? row.get(key) : false;
  require(typeof value === "boolean", `${whose} ${key} is not True or False`);
  return value;
}
