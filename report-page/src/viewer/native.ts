/** Forebay's own format, a zip of one .npy file per column: forebay/snapshot/formats/native.py. */

import { check } from "./consistency";
import { BLOCK, ENTRY, SEGMENT, type Snapshot, Table } from "./model";
import { BadSnapshot, require, type Rules } from "./rules";
import { budget, type Progress } from "./source";
import { Archive, type Member } from "./zip";

const STACK = { parent: 0, frame: 1, width: 2 };
const FRAME = { file: 0, name: 1, line: 2, width: 3 };
/** For each table its layout, its 64-bit columns, and the columns since version 2, by their names in the file. */
const TABLES = {
  segments: { layout: SEGMENT, long: ["address", "nbytes", "queue"], newer: ["pool", "growing"] },
  blocks: { layout: BLOCK, long: ["address", "nbytes", "requested", "state"], newer: [] },
  trace: { layout: ENTRY, long: ["time", "address", "nbytes", "queue"], newer: ["pool", "note"] },
  stacks: { layout: STACK, long: [], newer: [] },
  frames: { layout: FRAME, long: [], newer: [] },
};
const MEMBERS: Record<string, string> = { pool: "home", time: "time_ns" };
const MAGIC = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0];
const HEADER = /^\{'descr': '(<u[48])', 'fortran_order': False, 'shape': \((\d{1,18}),\), \} *\n$/;
const MOST_NAME = 200;
const TABLE_COST = 2;

type Name = keyof typeof TABLES;

interface Manifest {
  version: number;
  device: string;
  capacity: number;
  taken_at_ns: number;
  lost: number;
  rows: Record<Name, number>;
  strings: string[];
  stats: Record<string, number>;
  notes: Record<string, unknown>;
  labels: [string, string][];
}

export async function readNative(file: Blob, rules: Rules, progress: Progress): Promise<Snapshot> {
  const archive = await Archive.open(file);
  const members = new Map(archive.members.map((member) => [member.name, member]));
  const head = members.get("manifest.json");
  require(head !== undefined, "not a forebay snapshot: manifest.json is missing");
  let left = budget(rules, file.size, false);
  const charge = (bytes: number): void => {
    left -= bytes;
    require(left >= 0, "it would need more memory than a file of its size may");
  };
  charge(2 * head.size);
  const raw = await archive.read(head);
  charge(manifestCost(raw) - 2 * raw.length);
  const manifest = manifestOf(raw, rules);
  const columns = columnsOf(manifest.version);
  const names = new Set(["manifest.json", ...columns.map(({ member }) => member)]);
  require(archive.members.length === names.size, "a member is missing, unknown or duplicated");
  require([...names].every((name) => members.has(name)), "members are missing or unknown");
  const tables = {} as Record<Name, Table>;
  let total = 0;
  for (const [name, { layout }] of Object.entries(TABLES) as [Name, (typeof TABLES)[Name]][]) {
    const count = manifest.rows[name];
    for (const column of columns) {
      const { size } = members.get(column.member) as Member;
      require(column.table !== name || (count >= 0 && count * column.bytes <= size), `${column.member} is truncated`);
    }
    total += 4 * layout.width * count;
  }
  charge(TABLE_COST * total);
  for (const name of Object.keys(TABLES) as Name[]) tables[name] = new Table(manifest.rows[name], TABLES[name].layout.width);
  let done = 0;
  for (const { member, table, word, bytes } of columns) {
    fill(tables[table], word, bytes, member, await archive.read(members.get(member) as Member));
    progress((done += bytes * tables[table].count), total);
  }
  const { segments, blocks, trace, stacks, frames } = tables;
  const { device, capacity, taken_at_ns: takenAt, lost, strings, stats, notes, labels } = manifest;
  const parent = Uint32Array.from({ length: stacks.count }, (_, row) => stacks.get(row, STACK.parent));
  const frame = Uint32Array.from({ length: stacks.count }, (_, row) => stacks.get(row, STACK.frame));
  const rest = { device, capacity, takenAt, lost, strings, stats, notes, labels };
  const found: Snapshot = { ...rest, segments, blocks, trace, parent, frame, frames: frames.words };
  check(found);
  return found;
}

interface Column {
  member: string;
  table: Name;
  word: number;
  bytes: number;
}

function columnsOf(version: number): Column[] {
  return (Object.entries(TABLES) as [Name, (typeof TABLES)[Name]][]).flatMap(([table, { layout, long, newer }]) =>
    Object.entries(layout)
      .filter(([name]) => name !== "width" && (version > 1 || !(newer as string[]).includes(name)))
      .map(([name, word]) => {
        const bytes = (long as string[]).includes(name) ? 8 : 4;
        return { member: `${table}/${MEMBERS[name] ?? name}.npy`, table, word, bytes };
      }),
  );
}

function fill(table: Table, word: number, bytes: number, name: string, content: Uint8Array<ArrayBuffer>): void {
  require(content.length >= 10 && MAGIC.every((byte, at) => content[at] === byte), `${name} has an unsupported .npy version`);
  const begin = 10 + content[8] + 256 * content[9];
  const header = HEADER.exec(new TextDecoder("latin1").decode(content.subarray(10, begin)));
  require(header !== null, `${name} has an invalid .npy header`);
  const wanted = `<u${bytes}`;
  const holds = `${name} holds ${Number(header[2])} of ${header[1]}, not ${table.count} of ${wanted}`;
  require(header[1] === wanted && Number(header[2]) === table.count, holds);
  const size = table.count * bytes;
  require(content.length >= begin + size, `${name} is truncated`);
  require(content.length === begin + size, `${name} is longer than the manifest states`);
  const words = new Uint32Array(content.slice(begin).buffer);
  const each = bytes / 4;
  for (let row = 0; row < table.count; row++) {
    for (let half = 0; half < each; half++) table.set(row, word + half, words[row * each + half]);
  }
}

/** Return an upper bound of the memory that parsing takes, as native.py does. */
function manifestCost(raw: Uint8Array): number {
  const counts = new Float64Array(256);
  let escaped = false;
  for (let at = 0; at < raw.length; at++) {
    counts[raw[at]]++;
    escaped ||= raw[at] === 0x5c && raw[at + 1] === 0x75;
  }
  const count = (letter: string) => counts[letter.charCodeAt(0)];
  const objects = 40 * count(",") + 72 * count("[") + 240 * count("{") + 72 * count(":");
  return objects + 24 * count('"') + (escaped ? 6 : 3) * raw.length;
}

function manifestOf(raw: Uint8Array<ArrayBuffer>, rules: Rules): Manifest {
  let found: Record<string, unknown>;
  try {
    found = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(raw)) as Record<string, unknown>;
  } catch (error) {
    throw new BadSnapshot(`manifest.json is not JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
  require(isObject(found) && found.format === "forebay-snapshot", "not a forebay snapshot");
  const { version } = found;
  require(Number.isInteger(version) && (version as number) > 0, "the version is not a positive integer");
  const newest = `this one reads up to ${rules.version}`;
  require((version as number) <= rules.version, `written by a newer forebay (version ${String(version)}; ${newest})`);
  if ((version as number) < 2) found.labels = [];
  for (const name of ["rows", "stats", "notes"]) require(isObject(found[name]), `${name} is missing or not a dict`);
  for (const name of ["strings", "labels"]) require(Array.isArray(found[name]), `${name} is missing or not a list`);
  require(typeof found.device === "string", "device is missing or not a str");
  const manifest = found as unknown as Manifest;
  const { capacity, taken_at_ns, lost, rows, stats } = manifest;
  for (const [name, value] of Object.entries({ capacity, taken_at_ns, lost, ...rows, ...stats })) {
    require(Number.isInteger(value) && Math.abs(value) < 2 ** 63, `${name} is missing or not a 64-bit integer`);
  }
  require([...manifest.device].length <= MOST_NAME, "the name of the device is too long");
  require(manifest.strings.every((text) => typeof text === "string"), "an item of strings is not a string");
  const isLabel = (label: unknown) => Array.isArray(label) && label.length === 2 && label.every((text) => typeof text === "string");
  require(manifest.labels.every(isLabel), "a label is not a pair of strings");
  require(Math.min(capacity, taken_at_ns, lost) >= 0, "a size, time or count is negative");
  const same = Object.keys(rows).length === Object.keys(TABLES).length && Object.keys(TABLES).every((name) => Object.hasOwn(rows, name));
  require(same, "the manifest does not list the lengths of the tables");
  return manifest;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
