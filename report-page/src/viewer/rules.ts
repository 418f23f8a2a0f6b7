/** Rules that Python has: regular expressions, words and limits, which the page contains as JSON. */

/** A pattern, and the flags of the expression: "y" for one that must match where the search begins. */
type Expression = [pattern: string, flags: string];

/** What forebay/snapshot/report/page/viewer.py writes. */
export interface Rules {
  version: number; // the latest version of forebay's own format
  actions: Record<string, number>; // by PyTorch's word
  states: Record<string, number>;
  segment_types: Record<string, number>;
  budget: { per_byte: number; per_decompressed: number; fixed: number; most_ratio: number; always: number };
  file_kinds: [pattern: string, flags: string, kind: number][]; // the first that matches decides
  own: number; // the kind of other files, and the numbers of kinds
  text: number;
  library: number;
  standard: number;
  expressions: Record<string, Expression>;
  thin: string[];
  not_nodes: string[];
  before_recording: string; // names of the sites that are no line
  no_stack: string;
  no_code: string;
}

export class Patterns {
  private readonly known = new Map<string, RegExp>();
  readonly kinds: { pattern: RegExp; kind: number }[];

  constructor(readonly rules: Rules) {
    this.kinds = rules.file_kinds.map(([pattern, flags, kind]) => ({ pattern: new RegExp(pattern, flags), kind }));
    for (const [name, [pattern, flags]] of Object.entries(rules.expressions)) this.known.set(name, new RegExp(pattern, flags));
  }

  /** Return the expression of a name, as Python calls it. */
  of(name: string): RegExp {
    const found = this.known.get(name);
    if (!found) throw new Error(`the page has no expression ${name}`);
    found.lastIndex = 0;
    return found;
  }

  test(name: string, text: string): boolean {
    return this.of(name).test(text);
  }
}

/** The file cannot be read, with the reason. */
export class BadSnapshot extends Error {}

export function require(condition: boolean, message: string): asserts condition {
  if (!condition) throw new BadSnapshot(message);
}

/** A function of one text whose results are kept: most texts occur often. */
export function remembered<Result>(compute: (text: string) => Result): (text: string) => Result {
  const known = new Map<string, Result>();
  return (text) => {
    let found = known.get(text);
    if (found === undefined) known.set(text, (found = compute(text)));
    return found;
  };
}
