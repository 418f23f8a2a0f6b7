/** The kind of a frame, by the table of forebay/records/frame_kinds.py: Note [Kinds of frames]. */

import { type Patterns, remembered } from "./rules";

const MOST_PATH = 1 << 12; // characters; a longer text is no path

export const NEVER = 0;

/** A text without the characters beyond a limit, of which one may be two units of a string. */
function beginning(text: string, most: number): string {
  return text.length <= most ? text : [...text].slice(0, most).join("");
}

function isLong(text: string): boolean {
  return text.length > MOST_PATH && [...text].length > MOST_PATH;
}

export function kindOfFile(file: string, patterns: Patterns): number {
  if (isLong(file)) return NEVER;
  const path = file.replaceAll("\\", "/");
  for (const { pattern, kind } of patterns.kinds) if (pattern.test(path)) return kind;
  return patterns.rules.own;
}

export function isOwn(file: string, patterns: Patterns): boolean {
  return kindOfFile(file, patterns) >= patterns.rules.text;
}

export function isNativeName(name: string, patterns: Patterns): boolean {
  return patterns.test("native_name", beginning(name, MOST_PATH));
}

export function isOfForebay(file: string, patterns: Patterns): boolean {
  return patterns.test("forebay", beginning(file, MOST_PATH).replaceAll("\\", "/"));
}

/** Return a path as reports show it. */
export function shortPath(file: string, patterns: Patterns): string {
  if (isLong(file)) return file;
  const path = file.replaceAll("\\", "/");
  const cell = patterns.of("cell").exec(path);
  if (cell) return `cell [${cell[1] ?? cell[2]}]`;
  const unnumbered = patterns.of("unnumbered_cell").exec(path);
  if (unnumbered) return `cell ${unnumbered[1]}`;
  const inside = patterns.of("after_packages").exec(path);
  if (inside) return path.slice(inside[0].length);
  const standard = patterns.of("standard").exec(path);
  if (standard && kindOfFile(file, patterns) <= patterns.rules.standard) return path.slice(standard[0].length);
  return file;
}

/** The functions of one file's names, each computed once for each text. */
export class FrameRules {
  readonly kind = remembered((file) => kindOfFile(file, this.patterns));
  readonly native = remembered((name) => isNativeName(name, this.patterns));
  readonly ofForebay = remembered((file) => isOfForebay(file, this.patterns));
  readonly short = remembered((file) => shortPath(file, this.patterns));

  constructor(readonly patterns: Patterns) {}
}
