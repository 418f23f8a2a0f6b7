/** What the page shows of a device around its charts: facts, remarks, key figures, and what only commands can tell. */

import { facts, make } from "../dom";
import { bytes, count, duration, plural, rate } from "../format";
import type { Device } from "./device";

/** Return the article, in which the explorer fills the element of class "explorer". */
export function articleOf(device: Device, file: string): HTMLElement {
  const heading = make("h1", {}, `Memory of ${device.name}`);
  const line = make("p", { class: "program" }, device.program || file);
  const tiles = make("section", { class: "tiles", "aria-label": "Summary" }, ...tilesOf(device));
  const explorer = device.entries || device.segments ? make("div", { class: "explorer" }) : make("p", { class: "empty" }, "The device holds no memory, and no history was recorded.");
  return make("article", {}, heading, line, factsOf(device), ...alarms(device), ...remarks(device), tiles, explorer, commands(device, file));
}

function factsOf({ takenAt, summary, entries, capacity }: Device): HTMLElement {
  const pairs: [string, string][] = [];
  if (takenAt) pairs.push(["taken", `${new Date(takenAt / 1e6).toISOString().slice(0, 19).replace("T", " ")} UTC`]);
  if (entries) pairs.push(["history", `${duration(summary.span_ns)}, ${count(entries)} ${entries === 1 ? "entry" : "entries"}`]);
  if (capacity) pairs.push(["device", bytes(capacity)]);
  return facts(pairs);
}

function alarms({ summary, sites, columns }: Device): HTMLElement[] {
  const last = columns["oom.moment"].length - 1;
  if (last < 0) return [];
  const stack = columns["oom.stack"][last];
  const times = last ? ` (${count(last + 1)} times; this is the last)` : "";
  const site = sites[columns["stack.site"][stack]];
  const free = columns["oom.free"][last] ? ` The device had ${bytes(columns["oom.free"][last])} free.` : "";
  const text = `${site} requested ${bytes(columns["oom.wanted"][last])}.${free} ${bytes(summary.reserved)} were reserved at the end.`;
  const heading = make("h2", {}, `Out of memory${times}`);
  return [make("section", { class: "alarm", "aria-label": "Explanation" }, heading, make("p", {}, text))];
}

function remarks({ summary, truncated, sampled, older, entries, lost }: Device): HTMLElement[] {
  const found: string[] = [];
  if (truncated) found.push(`The snapshot is truncated: ${truncated}.`);
  if (sampled) {
    found.push("Sampled: the sizes are estimates from a sample of the arrays. The command forebay report states their error.");
  }
  if (lost) found.push(`The ring buffer dropped the first ${count(lost)} entries of the history.`);
  if (!entries) found.push("No history was recorded. The final state is shown below.");
  if (entries && older.blocks) {
    const blocks = older.blocks === 1 ? "1 block is" : `${count(older.blocks)} blocks are`;
    const place = "the chart draws such memory from its left edge, and its stack may be unknown.";
    found.push(`${blocks} older than the recorded history (${bytes(older.bytes)}): ${place}`);
  }
  if (entries && summary.peak_ever > summary.peak) {
    found.push(`The highest peak, ${bytes(summary.peak_ever)}, was before the recorded history.`);
  }
  return found.map((text) => make("p", { class: "remark" }, text));
}

function tilesOf({ summary, capacity, entries, sampled }: Device): HTMLElement[] {
  const most = summary.peak_allocated;
  const peak = Math.min(most, summary.peak_reserved || most, capacity || most); // no more than the segments hold
  const share = (part: number, total: number, suffix: string) => (total ? `${Math.round((100 * part) / total)}% ${suffix}` : "");
  if (sampled) {
    return [
      tile("Peak, estimated", bytes(summary.peak), ""), // no device reserves memory for it
      tile("At the end, estimated", bytes(summary.current), share(summary.current, summary.peak, "of the peak")),
      tile("Sampled arrays", count(summary.allocations), `${count(summary.frees)} freed`),
    ];
  }
  const busy = summary.allocations > 1 && summary.per_second;
  return [
    tile("Peak allocated", bytes(peak), share(peak, capacity, "of the device")),
    tile("Allocated at the end", bytes(summary.allocated), share(summary.allocated, peak, "of the peak")),
    tile("Reserved at the end", bytes(summary.reserved), share(summary.allocated, summary.reserved, "of it allocated") || "nothing reserved"),
    tile("Allocations", busy ? `${rate(summary.per_second)} /s` : count(summary.allocations), `${count(summary.allocations)} allocated, ${count(summary.frees)} freed`),
    tile("Largest free block", bytes(summary.largest_free), summary.current ? `fragmentation ${Math.round(100 * summary.fragmentation)}%` : ""),
    entries
      ? tile("Out of memory", summary.ooms ? plural(summary.ooms, "time") : "never", "in this history", summary.ooms ? "bad" : "")
      : tile("History", "none", "final state only"),
  ];
}

function tile(name: string, value: string, note: string, kind = ""): HTMLElement {
  const [number, unit] = value.split(" ");
  const bold = make("b", {}, number, ...(unit ? [make("small", {}, unit)] : []));
  return make("div", { class: `tile ${kind}` }, make("span", {}, name), bold, make("em", {}, note));
}

/** Name the commands for what needs the allocator, which is not in the page. */
function commands({ summary }: Device, file: string): HTMLElement {
  const quoted = /^[\w./@%+=:,-]+$/.test(file) && !file.startsWith("-") ? file : `'${file.replaceAll("'", "'\\''")}'`;
  const rows: [string, string][] = [
    [`forebay explain ${quoted}`, summary.ooms ? "why memory ran out, and which change would have prevented it" : "which allocations made the peak"],
    [`forebay explain ${quoted} --what-if CHANGE`, "the peak with other sizes or lifetimes"],
    [`forebay tune ${quoted}`, "the allocator settings that need the least memory"],
    [`forebay report ${quoted}`, "this page with all of that, for others to open"],
  ];
  const body = rows.map(([command, effect]) => make("tr", {}, make("td", {}, make("code", {}, command)), make("td", {}, effect)));
  const note = make("p", { class: "note" }, "What follows from other settings or another program is computed by the allocator itself. These commands have it: pip install forebay.");
  const table = make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...body)));
  return make("section", { class: "card commands", "aria-label": "Commands" }, make("h2", {}, "Settings and changes"), note, table);
}
