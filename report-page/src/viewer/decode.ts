/** First pass over a pickle: forebay/snapshot/formats/torch_decode.py, with the same reader. */

import { DETAILS, DONE, FORBIDDEN, FRAMES, Module, MORE, NODES, NOTES, PAIRS, TOO_LARGE } from "./module";
import { BadSnapshot, type Rules } from "./rules";
import type { Source } from "./source";
import { ODD } from "./values";

const WINDOW = 1 << 20;
const MOST_WINDOW = 64 << 20;

/** Entries and stacks of all devices in a file: `Tables` of torch_decode.py. Pairs are four words each. */
export interface Tables {
  pairs: Uint32Array;
  notes: Uint32Array;
  details: Uint32Array;
  frames: Uint32Array;
  parents: Uint32Array; // of the stack tree; row 0 is the empty stack
  frameOf: Uint32Array;
  forward: Uint32Array; // the chain of forward frames of a row
}

/** Read a whole pickle into the module. Returns where the file ends early, or "". */
export async function decode(module: Module, source: Source, rules: Rules): Promise<string> {
  const { native } = module;
  native.begin(crypto.getRandomValues(new BigUint64Array(1))[0]);
  for (const [word, number] of Object.entries(rules.actions)) {
    const place = module.allocate(word.length);
    module.bytes(place, word.length).set(new TextEncoder().encode(word));
    native.name_action(place, word.length, number);
    native.release(place);
  }
  let room = WINDOW;
  let place = module.allocate(room);
  let held = 0;
  let status = MORE;
  for await (const part of source.parts()) {
    if (held + part.length > room) {
      const larger = Math.max(2 * room, held + part.length);
      if (larger > MOST_WINDOW) throw new BadSnapshot(ODD);
      const moved = module.allocate(larger);
      module.bytes(moved, held).set(module.bytes(place, held));
      native.release(place);
      [place, room] = [moved, larger];
    }
    module.bytes(place, room).set(part, held);
    held += part.length;
    status = native.read(place, held, source.beyond, source.limit);
    if (status === DONE) break;
    if (status !== MORE) throw new BadSnapshot(refusal(status));
    const done = native.consumed();
    if (done) module.bytes(place, room).copyWithin(0, done, held);
    held -= done;
  }
  native.release(place);
  if (status === DONE) return "";
  if (!native.salvage()) throw new BadSnapshot(source.position ? ODD : "it is empty");
  const position = source.position.toLocaleString("en");
  return `the file ends after ${position} bytes, inside the pickle: entries and settings may be missing`;
}

function refusal(status: number): string {
  if (status === TOO_LARGE) return "invalid pickle: its values need more memory than a file of its size may";
  if (status === FORBIDDEN) return "not plain data: it would run or import code, which no snapshot of PyTorch does";
  return ODD;
}

/** Copy the tables that the reader has made. */
export function tablesOf(module: Module): Tables {
  const nodes = module.table(NODES);
  const count = nodes.length / 4 + 1;
  const [parents, frameOf, forward] = [new Uint32Array(count), new Uint32Array(count), new Uint32Array(count)];
  for (let row = 1; row < count; row++) {
    const at = 4 * (row - 1);
    parents[row] = nodes[at];
    forward[row] = nodes[at + 1];
    frameOf[row] = nodes[at + 2];
  }
  const [pairs, notes] = [module.table(PAIRS), module.table(NOTES)];
  return { pairs, notes, details: module.table(DETAILS), frames: module.table(FRAMES), parents, frameOf, forward };
}

/** Return the keys and texts of a chain, the first one first. */
export function chainOf(details: Uint32Array, chain: number): [key: number, text: number][] {
  const found: [number, number][] = [];
  for (let at = chain; at; ) {
    const row = 4 * (at - 1);
    found.push([details[row], details[row + 2]]);
    at = details[row + 1];
  }
  return found.reverse();
}
