/** Texts that name sites: forebay/records/site_labels.py, and printable texts as forebay/_base/untrusted.py makes them. */

import type { FrameRules } from "./frame-kinds";
import type { Patterns } from "./rules";

const MOST_FILE = 300; // characters of a label
const MOST_NAME = 200;

export interface Frame {
  file: string;
  name: string;
  line: number;
}

/** Return the beginning and the end of a text that is longer. */
export function shortened(text: string, length: number): string {
  if (text.length <= length) return text;
  const letters = [...text];
  if (letters.length <= length) return text;
  const end = Math.floor(length / 3);
  return `${letters.slice(0, length - end - 1).join("")}…${letters.slice(letters.length - end).join("")}`;
}

export function printable(text: string, patterns: Patterns): string {
  return text.replace(patterns.of("unprintable"), (letter) => {
    const code = letter.charCodeAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

export function labelOf(frame: Frame, rules: FrameRules): string {
  const name = shortened(frame.name, MOST_NAME);
  if (rules.native(frame.name) && frame.name !== "??") return printable(name, rules.patterns);
  const place = placeOf(frame, rules);
  if (place.startsWith("cell ") && name.startsWith("<")) return place;
  return printable(`${place} ${name}`.trimEnd(), rules.patterns);
}

export function placeOf({ file, line }: Frame, rules: FrameRules): string {
  const short = shortened(rules.short(file), MOST_FILE);
  return printable(line ? `${short}:${line}` : short, rules.patterns);
}

/** Number labels of different sites where two are equal. */
export function uniqueLabels(labels: string[]): string[] {
  const seen = new Map<string, number>();
  const taken = new Set(labels);
  return labels.map((label) => {
    let [text, number] = [label, (seen.get(label) ?? 0) + 1];
    while (number > 1 && taken.has((text = `${label} (${number})`))) number++;
    seen.set(label, number);
    taken.add(text);
    return text;
  });
}

/** Return the folder that labels share, with its separator; "" for none. */
export function commonFolder(labels: string[], patterns: Patterns): string {
  const absolute = labels.filter((label) => patterns.test("absolute", label));
  const used = (absolute.length ? absolute : labels).filter((label) => !label.startsWith("("));
  const folders = used.map((label) => {
    const path = patterns.of("label_file").exec(label)?.groups?.file ?? label;
    return path.split(patterns.of("folder_end")).slice(0, -1);
  });
  let shared = 0;
  while (folders.length && folders.every((each) => shared < each.length && each[shared] === folders[0][shared])) shared++;
  const folder = folders.length ? folders[0].slice(0, shared).join("") : "";
  return folder.length < 2 ? "" : folder;
}
