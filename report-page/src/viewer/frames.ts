/** Frames that a traceback describes: those of the forward pass, and the model's lines of generated code. */

import { chainOf, type Tables } from "./decode";
import { isOwn } from "./frame-kinds";
import type { Patterns } from "./rules";
import type { Tree } from "./torch";

const NO_FRAME = 0xffffffff;
const MORE_TEXTS = 2 ** 31; // the first row of texts that are not in the reader, which never has so many
const MOST_NAME = 1000;
const MOST_TRACE = 100_000;

type Frame = [file: string, name: string, line: number];

/** Give stacks with forward frames these as callers: Note [Forward frames are callers]. */
export function withCallers(raw: Tables, text: (row: number) => string, patterns: Patterns): Tree {
  const rows: number[] = [];
  raw.forward.forEach((chain, row) => {
    if (chain) rows.push(row);
  });
  const rowOf = new Map<number, number>();
  if (!rows.length) return { ...raw, text, rowOf };
  const [words, numbers, added] = [new Map<string, number>(), new Map<string, number>(), new Map<string, number>()];
  const [parents, frameOf, frames] = [[...raw.parents], [...raw.frameOf], [...raw.frames]];
  const number = (word: string): number => {
    if (!words.has(word)) words.set(word, MORE_TEXTS + words.size);
    return words.get(word) ?? 0;
  };
  const frameRow = ([file, name, line]: Frame): number => {
    const key = JSON.stringify([file, name, line]);
    let row = numbers.get(key);
    if (row === undefined) {
      numbers.set(key, (row = frames.length / 4));
      frames.push(number(name), number(file), line, 0);
    }
    return row;
  };
  const add = (parent: number, frame: number): number => {
    parents.push(parent);
    frameOf.push(frame);
    return parents.length - 1;
  };
  for (const row of rows) {
    const own: number[] = [];
    for (let at = row; at && raw.frameOf[at] !== NO_FRAME; at = raw.parents[at]) own.push(raw.frameOf[at]);
    const lines = chainOf(raw.details, raw.forward[row]).map(([, each]) => text(each));
    const path = [...lines.map((line) => frameRow(forwardFrame(line, patterns))), ...own.reverse()];
    let parent = 0;
    for (const frame of path.slice(0, -1)) {
      const key = `${parent},${frame}`;
      let known = added.get(key);
      if (known === undefined) added.set(key, (known = add(parent, frame)));
      parent = known;
    }
    rowOf.set(row, add(parent, path[path.length - 1])); // of its own, even if another stack has equal frames
  }
  const all = [...words.keys()];
  return {
    ...raw,
    parents: Uint32Array.from(parents),
    frameOf: Uint32Array.from(frameOf),
    frames: Uint32Array.from(frames),
    text: (row) => (row < MORE_TEXTS ? text(row) : all[row - MORE_TEXTS]),
    rowOf,
  };
}

function forwardFrame(text: string, patterns: Patterns): Frame {
  const match = patterns.of("forward_line").exec(text);
  if (!match) return ["", [...(text.trim() || "?")].slice(0, MOST_NAME).join(""), 0];
  return [match[1], [...match[3]].slice(0, MOST_NAME).join(""), Number(match[2])];
}

/** Move frames of code that torch.fx generated to the lines of the model: generated_frames.py. */
export function placeOriginals(
  frames: Uint32Array,
  strings: string[],
  details: Map<number, Map<string, string>>,
  patterns: Patterns,
): { frames: Uint32Array; strings: string[] } {
  if (!details.size) return { frames, strings };
  const numbers = new Map(strings.map((text, row) => [text, row]));
  const number = (text: string): number => {
    if (!numbers.has(text)) {
      numbers.set(text, strings.length);
      strings.push(text);
    }
    return numbers.get(text) ?? 0;
  };
  for (const [row, fields] of details) {
    const trace = [...(fields.get("fx_original_trace") ?? "")].slice(0, MOST_TRACE).join("");
    const found = [...trace.matchAll(patterns.of("generated_line"))].map(([, file, line, name]): Frame => [file, name, Number(line)]);
    if (!found.length) continue;
    const [file, name, line] = found.findLast(([each]) => isOwn(each, patterns)) ?? found[found.length - 1];
    frames.set([number(file), number([...name].slice(0, MOST_NAME).join("")), line], 3 * row);
  }
  return { frames, strings };
}
