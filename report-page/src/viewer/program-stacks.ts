/** Stacks as the program has them: without forebay's own frames, and equal ones once. forebay/records/program_stacks.py. */

import type { FrameRules } from "./frame-kinds";
import type { Stacks } from "./model";

export interface ProgramStacks {
  parent: Int32Array;
  frame: Int32Array;
  ofStack: Int32Array; // the row here of each row there
}

export function programStacks({ parent, frame, frames, strings }: Stacks, rules: FrameRules): ProgramStacks {
  const hidden = strings.map(rules.ofForebay);
  const starts = strings.map((text) => ["<frozen runpy>", "runpy.py"].includes(text) || /[/\\]runpy\.py$/.test(text));
  const numbers = new Map<string, number>(); // of equal frames; files of others may have one several times
  const count = frames.length / 3;
  const numberOf = Int32Array.from({ length: count }, (_, row) => {
    const key = JSON.stringify([strings[frames[3 * row]], strings[frames[3 * row + 1]], frames[3 * row + 2]]);
    const known = numbers.get(key);
    if (known === undefined) numbers.set(key, row);
    return known ?? row;
  });
  const rows = new Map<number, number>();
  const [parents, used] = [[0], [0]];
  const ofStack = new Int32Array(Math.max(1, parent.length));
  const isBefore = new Uint8Array(ofStack.length).fill(1); // nothing of the program has been called yet
  for (let row = 1; row < parent.length; row++) {
    const file = frames[3 * frame[row]];
    isBefore[row] = Number(isBefore[parent[row]] && (hidden[file] || starts[file]));
    const caller = ofStack[parent[row]];
    ofStack[row] = caller;
    if (hidden[file] || isBefore[row]) continue;
    const key = caller * count + numberOf[frame[row]];
    let found = rows.get(key);
    if (found === undefined) {
      rows.set(key, (found = parents.length));
      parents.push(caller);
      used.push(numberOf[frame[row]]);
    }
    ofStack[row] = found;
  }
  return { parent: Int32Array.from(parents), frame: Int32Array.from(used), ofStack };
}
