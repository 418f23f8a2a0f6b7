/** Allocation sites of stacks, by the rules of forebay/records/sites.py. */

import type { FrameRules } from "./frame-kinds";
import { type Frame, labelOf, placeOf, uniqueLabels } from "./labels";
import type { Stacks } from "./model";

const FIRST = 2; // site that is a line
const MOST_LINES = 3; // that may have made a node and are named
const MOST_TEXT = 1 << 12;

export interface Sites {
  labels: string[];
  /** The site of each row of the stacks; the additional last element is for stacks that were never seen. */
  ofStack: Int32Array;
  inner: Int32Array; // the row of frames of the innermost line in a library; -1 for none
}

/** Live allocations: the stack (-1: never seen) and the bytes of each. */
export interface Live {
  stack: ArrayLike<number>;
  nbytes: ArrayLike<number>;
}

export function frameAt({ frames, strings }: Stacks, row: number): Frame {
  return { file: strings[frames[3 * row]], name: strings[frames[3 * row + 1]], line: frames[3 * row + 2] };
}

/** Find the sites, and split one that holds more than half of the live bytes by its lines in libraries. */
export function findSites(stacks: Stacks, live: Live, rules: FrameRules): Sites {
  return split(new Finder(stacks, rules).sites(), stacks, live, rules);
}

function split(sites: Sites, stacks: Stacks, { stack, nbytes }: Live, rules: FrameRules): Sites {
  const { ofStack, inner } = sites;
  const at = (row: number) => (row < 0 ? ofStack.length - 1 : row);
  const held = new Float64Array(sites.labels.length);
  let total = 0;
  for (let i = 0; i < stack.length; i++) {
    held[ofStack[at(stack[i])]] += nbytes[i];
    total += nbytes[i];
  }
  const largest = held.reduce((best, bytes, site) => (bytes > held[best] ? site : best), 0);
  const ofLargest = new Set<number>();
  for (let i = 0; i < stack.length; i++) if (ofStack[at(stack[i])] === largest) ofLargest.add(inner[at(stack[i])]);
  if (largest < FIRST || held[largest] <= total / 2 || ofLargest.size < 2) return sites;
  const rows: number[] = [];
  ofStack.forEach((site, row) => {
    if (site === largest) rows.push(row);
  });
  const lines = [...new Set(rows.map((row) => inner[row]))].sort((a, b) => a - b);
  const labels = [...sites.labels];
  const numbers = new Map<string, number>([["", largest]]);
  const siteOfLine = new Map<number, number>();
  for (const line of lines) {
    const frame = line < 0 ? null : frameAt(stacks, line);
    const key = frame ? JSON.stringify(frame) : "";
    if (frame && !numbers.has(key)) {
      numbers.set(key, labels.length);
      labels.push(`${sites.labels[largest]} → ${labelOf(frame, rules)}`);
    }
    siteOfLine.set(line, numbers.get(key) ?? largest);
  }
  const moved = ofStack.slice();
  for (const row of rows) moved[row] = siteOfLine.get(inner[row]) ?? largest;
  return { labels: uniqueLabels(labels), ofStack: moved, inner };
}

class Finder {
  private readonly rows: number;
  private readonly frameCount: number;

  constructor(
    private readonly stacks: Stacks,
    private readonly rules: FrameRules,
  ) {
    this.rows = stacks.parent.length;
    this.frameCount = stacks.frames.length / 3;
  }

  sites(): Sites {
    const { rules: kinds } = this.rules.patterns;
    if (this.rows < 2) {
      const none = new Int32Array(Math.max(1, this.rows) + 1).fill(-1);
      const labels = uniqueLabels([kinds.before_recording, kinds.no_stack]);
      return { labels, ofStack: Int32Array.of(1, 0), inner: none };
    }
    const kind = this.each((file, name) => (this.rules.native(name) ? 0 : this.rules.kind(file)));
    const site = this.innermost(kind, kinds.text);
    this.replace(site, this.innermost(kind, kinds.own), (own) => own > 0);
    for (const least of [kinds.library, kinds.standard]) {
      const other = this.innermost(kind, least);
      for (let row = 0; row < this.rows; row++) if (!site[row]) site[row] = other[row];
    }
    const node = this.innermost(this.each((_, name) => Number(this.nodeOf(name) !== "")));
    const program = site.slice();
    const fallback = this.innermost(this.each((file, name) => Number(this.isNamedNative(file, name))));
    const inner = this.innerLines(program, kind);
    for (let row = 0; row < this.rows; row++) if (!site[row]) site[row] = fallback[row];
    const backward = node.map((row, at) => (row > program[at] ? row : 0));
    return this.table(this.frameOf(site), this.frameOf(backward), program, inner);
  }

  /** Return a number for each frame. */
  private each(compute: (file: string, name: string) => number): Int32Array {
    const { frames, strings } = this.stacks;
    return Int32Array.from({ length: this.frameCount }, (_, row) => compute(strings[frames[3 * row]], strings[frames[3 * row + 1]]));
  }

  /** Return for each stack the row of its innermost frame with at least this number; 0 for none. */
  private innermost(of: Int32Array, least = 1): Int32Array {
    const { parent, frame } = this.stacks;
    const found = new Int32Array(this.rows);
    for (let row = 1; row < this.rows; row++) found[row] = of[frame[row]] >= least ? row : found[parent[row]];
    return found;
  }

  private replace(into: Int32Array, from: Int32Array, when: (row: number) => boolean): void {
    for (let row = 0; row < this.rows; row++) if (when(from[row])) into[row] = from[row];
  }

  private frameOf(rows: Int32Array): Int32Array {
    return rows.map((row) => (row > 0 ? this.stacks.frame[row] : -1));
  }

  private innerLines(site: Int32Array, kind: Int32Array): Int32Array {
    const { patterns, short } = this.rules;
    const { thin, standard, library } = patterns.rules;
    const isLibrary = this.each((file, name) => {
      const isDetour = patterns.test("plumbing", name) || thin.some((start) => short(file).startsWith(start));
      return isDetour ? 0 : 1;
    });
    const reach = (least: number) => this.innermost(isLibrary.map((wanted, row) => (wanted && kind[row] >= least ? 1 : 0)));
    const [line, inside] = [reach(standard), reach(library)];
    for (let row = 0; row < this.rows; row++) {
      if (line[row] <= site[row]) line[row] = 0;
      if (inside[row] > site[row]) line[row] = inside[row];
    }
    return this.frameOf(line);
  }

  private nodeOf(name: string): string {
    const { patterns } = this.rules;
    const found = patterns.of("node").exec(name.slice(0, MOST_TEXT))?.[1] ?? "";
    return patterns.rules.not_nodes.includes(found) ? "" : found;
  }

  private operatorOf(name: string): string {
    return this.rules.patterns.of("operator").exec(name.slice(0, MOST_TEXT))?.[1] ?? "";
  }

  private isNamedNative(file: string, name: string): boolean {
    const { patterns } = this.rules;
    if (name.length > MOST_TEXT || file.startsWith("<") || !this.rules.native(name)) return false;
    return !patterns.test("allocator_name", name) && !patterns.test("runtime_name", name);
  }

  /** Return the sites of stacks with equal frames and equal autograd nodes. */
  private table(site: Int32Array, node: Int32Array, program: Int32Array, inner: Int32Array): Sites {
    const { before_recording: before, no_stack: none } = this.rules.patterns.rules;
    const span = this.frameCount + 1;
    const key = (row: number) => (site[row] + 1) * span + node[row] + 1;
    const keys = new Set<number>();
    for (let row = 1; row < this.rows; row++) keys.add(key(row));
    const forward = this.forwardLines(site, node, program);
    const numbers = new Map<string, number>();
    const siteOfKey = new Map<number, number>();
    const labels = uniqueLabels([before, none]);
    for (const each of [...keys].sort((a, b) => a - b)) {
      const [same, label] = this.named(Math.floor(each / span) - 1, (each % span) - 1, forward);
      let number = numbers.get(same);
      if (number === undefined) {
        numbers.set(same, (number = labels.length));
        labels.push(label);
      }
      siteOfKey.set(each, number);
    }
    const ofStack = new Int32Array(this.rows + 1);
    ofStack[0] = 1;
    for (let row = 1; row < this.rows; row++) ofStack[row] = siteOfKey.get(key(row)) ?? 0;
    const innerOf = new Int32Array(this.rows + 1).fill(-1);
    innerOf.set(inner);
    return { labels: uniqueLabels(labels), ofStack, inner: innerOf };
  }

  /** Return what identifies a site, and its label. */
  private named(place: number, node: number, forward: Map<string, Frame[]>): [same: string, label: string] {
    const { rules } = this;
    const frame = place >= 0 ? frameAt(this.stacks, place) : null;
    const label = frame ? labelOf(frame, rules) : "";
    if (node < 0) return frame ? [JSON.stringify([frame]), label] : ["", rules.patterns.rules.no_code];
    const name = this.nodeOf(frameAt(this.stacks, node).name);
    const made = forward.get(name) ?? [];
    if (made.length === 1) return [JSON.stringify([made[0], name]), `${labelOf(made[0], rules)} ← ${name}`];
    if (frame && !rules.native(frame.name)) return [JSON.stringify([frame, name]), `${label} → ${name}`];
    const several = made.length > 1 && made.length <= MOST_LINES ? ` of ${made.map((each) => placeOf(each, rules)).join(" or ")}` : "";
    return [JSON.stringify([name]), `${name}${several}`];
  }

  /** Return the lines of the forward pass that can have made the nodes, for each name of a node. */
  private forwardLines(site: Int32Array, node: Int32Array, program: Int32Array): Map<string, Frame[]> {
    const { stacks } = this;
    const wanted = new Set<string>();
    for (const at of new Set(node)) if (at >= 0) wanted.add(this.nodeOf(frameAt(stacks, at).name));
    const lines = new Map<string, Map<string, Frame>>();
    if (!wanted.size) return new Map();
    const operators = new Map<string, string[]>();
    const done = new Set<string>();
    for (let row = 1; row < this.rows; row++) {
      if (node[row] >= 0 || program[row] <= 0) continue;
      const name = stacks.strings[stacks.frames[3 * stacks.frame[row] + 1]];
      let made = operators.get(name);
      if (!made) operators.set(name, (made = nodesOf(this.operatorOf(name))));
      if (!made.length || done.has(`${site[row]},${name}`)) continue;
      done.add(`${site[row]},${name}`);
      const frame = frameAt(stacks, site[row]);
      for (const each of made) {
        const own = lines.get(each) ?? new Map<string, Frame>();
        lines.set(each, own.set(JSON.stringify(frame), frame));
      }
    }
    const found = (name: string) => [...(lines.get(name.split("Backward", 1)[0])?.values() ?? [])].sort(byPlace);
    return new Map([...wanted].map((name) => [name, found(name)]));
  }
}

function byPlace(one: Frame, other: Frame): number {
  const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);
  return compare(one.file, other.file) || compare(one.name, other.name) || one.line - other.line;
}

/** Return the names, without "Backward" and number, of the nodes that an operator may make: backward_nodes.py. */
function nodesOf(operator: string): string[] {
  const words = operator.split("_").filter(Boolean).map((word) => word[0].toUpperCase() + word.slice(1));
  return words.map((_, end) => words.slice(0, end + 1).join(""));
}
