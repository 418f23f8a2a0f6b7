/** The thread that reads a file, so that the page can end it: Note [The viewer reads files in the browser]. */

import { type Device, deviceOf } from "./device";
import { FrameRules } from "./frame-kinds";
import type { Snapshot } from "./model";
import { Module } from "./module";
import { readNative } from "./native";
import { BadSnapshot, Patterns, type Rules } from "./rules";
import { Source } from "./source";
import { readPickle } from "./torch";

/** What the page sends: once. */
export interface Request {
  file: Blob;
  rules: Rules;
  binary: Uint8Array<ArrayBuffer>;
}

/** What the page receives: any number of steps, then the devices or an error. */
export interface Answer {
  step?: string;
  done?: number; // of `total` bytes
  total?: number;
  devices?: Device[];
  error?: string;
}

const PAUSE = 100; // milliseconds between two steps
const ZSTD = [0x28, 0xb5, 0x2f, 0xfd];
const NEITHER = "neither a forebay snapshot nor a PyTorch snapshot pickle";

addEventListener("message", ({ data }: MessageEvent<Request>) => void answer(data));

async function answer(request: Request): Promise<void> {
  try {
    const devices = await read(request);
    const moved = devices.flatMap(({ columns }) => Object.values(columns).map((column) => column.buffer));
    postMessage({ devices } satisfies Answer, { transfer: [...new Set(moved)] });
  } catch (error) {
    postMessage({ error: reason(error) } satisfies Answer);
  }
}

function reason(error: unknown): string {
  if (error instanceof BadSnapshot) return error.message;
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  if (error instanceof WebAssembly.RuntimeError || error instanceof RangeError) {
    return `the browser has not enough memory for it, or it is damaged (${text})`;
  }
  return text;
}

async function read({ file, rules, binary }: Request): Promise<Device[]> {
  const patterns = new Patterns(rules);
  const kinds = new FrameRules(patterns);
  const module = await Module.start(binary);
  const snapshots = await load(file, module, patterns);
  const found: Device[] = [];
  for (const [at, snapshot] of snapshots.entries()) {
    const of = snapshots.length > 1 ? ` of device ${at + 1} of ${snapshots.length}` : "";
    postMessage({ step: `computing memory over time${of}` } satisfies Answer);
    found.push(deviceOf(module, snapshot, kinds));
  }
  // As `used_devices` of commands/snapshot_files.py.
  const used = found.filter(({ entries, segments }) => entries || segments);
  const ranOut = (device: Device) => Number(device.columns["oom.moment"].length > 0);
  return used.length ? used.sort((a, b) => ranOut(b) - ranOut(a)) : found.slice(0, 1);
}

async function load(file: Blob, module: Module, patterns: Patterns): Promise<Snapshot[]> {
  let shown = 0;
  const progress = (done: number, total: number): void => {
    if (done < total && performance.now() - shown < PAUSE) return;
    shown = performance.now();
    postMessage({ step: "reading", done, total } satisfies Answer);
  };
  const start = new Uint8Array(await file.slice(0, 16).arrayBuffer());
  if (start[0] === 0x50 && start[1] === 0x4b) return [await readNative(file, patterns.rules, progress)];
  if (ZSTD.every((byte, at) => start[at] === byte)) {
    throw new BadSnapshot("it is compressed by Zstandard, which no browser decompresses. Use: forebay report FILE");
  }
  if (new TextDecoder("latin1").decode(start).startsWith("forebay-running")) {
    throw new BadSnapshot("the program under forebay run has not ended yet, or was killed. Use: forebay report FILE");
  }
  const source = new Source(file, start, patterns.rules, progress);
  // An uncompressed pickle of lists and dicts, in any protocol: safe_pickle.py.
  const isPickle = [0x80, 0x28, 0x5d, 0x7d].includes(start[0]) && !(start[0] === 0x28 && start[1] === 0x63);
  if (!isPickle && !source.compressed) throw new BadSnapshot(NEITHER);
  return readPickle(module, source, patterns);
}
