/** The reader of native/pickle, compiled to WebAssembly from report-page/reader/reader.cpp. */

import { BadSnapshot } from "./rules";

interface Exports {
  memory: WebAssembly.Memory;
  _initialize(): void;
  allocate(bytes: number): number;
  release(place: number): void;
  begin(seed: bigint): void;
  end(): void;
  name_action(text: number, length: number, value: number): void;
  read(place: number, size: number, beyond: bigint, limit: bigint): number;
  consumed(): number;
  salvage(): number;
  root(): number;
  box_kind(box: number): number;
  box_row(box: number): number;
  content_size(row: number): number;
  content(row: number): number;
  range_first(row: number): number;
  range_count(row: number): number;
  text_place(row: number): number;
  text_size(row: number): number;
  table_size(which: number): number;
  table_place(which: number): number;
  entries(): number;
  entry_count(): number;
  match(trace: number, entries: number, blocks: number, count: number, segments: number): number;
  matched(): number;
  forget(): void;
}

/** Results of `read`: HistoryStatus in native/pickle/value_stack.hpp. */
export const MORE = 0;
export const DONE = 1;
export const TOO_LARGE = 3;
export const FORBIDDEN = 6;

/** Tables of pairs of numbers, as reader.cpp numbers them. */
export const PAIRS = 0;
export const NODES = 1;
export const FRAMES = 2;
export const NOTES = 3;
export const DETAILS = 4;

export class Module {
  private constructor(readonly native: Exports) {}

  static async start(binary: Uint8Array<ArrayBuffer>): Promise<Module> {
    const module = await WebAssembly.compile(binary);
    // The C library names functions of the system, which are called at most where it gives up.
    const imports: WebAssembly.Imports = {};
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
      (imports[from] ??= {})[name] = () => {
        throw new BadSnapshot("the reader has stopped: there is not enough memory");
      };
    }
    const { exports } = await WebAssembly.instantiate(module, imports);
    const native = exports as unknown as Exports;
    native._initialize();
    return new Module(native);
  }

  /** Views are made for each use: they end when the memory grows. */
  bytes(place: number, count: number): Uint8Array<ArrayBuffer> {
    return new Uint8Array(this.native.memory.buffer as ArrayBuffer, place, count);
  }

  words(place: number, count: number): Uint32Array<ArrayBuffer> {
    return new Uint32Array(this.native.memory.buffer as ArrayBuffer, place, count);
  }

  allocate(bytes: number): number {
    const place = this.native.allocate(Math.max(bytes, 1)) >>> 0;
    if (!place) throw new BadSnapshot("there is not enough memory");
    return place;
  }

  /** Copy 32-bit words into the memory of the module. */
  copied(words: Uint32Array): number {
    const place = this.allocate(words.byteLength);
    this.words(place, words.length).set(words);
    return place;
  }

  /** Return a table of pairs: four words each, the low half of each number first. */
  table(which: number): Uint32Array {
    const count = this.native.table_size(which);
    return count ? this.words(this.native.table_place(which) >>> 0, 4 * count).slice() : new Uint32Array();
  }

  text(row: number): string {
    return decoded(this.bytes(this.native.text_place(row) >>> 0, this.native.text_size(row)));
  }
}

const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Decode UTF-8. As in Python's "surrogatepass", halves of surrogate pairs are themselves. */
export function decoded(bytes: Uint8Array<ArrayBuffer>): string {
  try {
    return STRICT.decode(bytes);
  } catch {
    let text = "";
    for (let at = 0; at < bytes.length; ) {
      const half = bytes[at] === 0xed && bytes[at + 1] >= 0xa0 && bytes[at + 2] >> 6 === 2;
      let end = at + 3;
      if (half) text += String.fromCharCode(0xd000 | ((bytes[at + 1] & 0x3f) << 6) | (bytes[at + 2] & 0x3f));
      else {
        for (end = at + 1; end < bytes.length && !(bytes[end] === 0xed && bytes[end + 1] >= 0xa0); ) end++;
        try {
          text += STRICT.decode(bytes.subarray(at, end));
        } catch {
          throw new BadSnapshot("a text is not UTF-8");
        }
      }
      at = end;
    }
    return text;
  }
}
