/** The chosen moment, and the pinned allocation with its stack. */

import { type Child, facts, figure, make } from "./dom";
import { bytes, count, duration, hex, percentage, sourceLine } from "./format";
import { fragmentation, type Fragments } from "./fragments";
import type { History } from "./history";
import type { Layers } from "./layers";
import type { State } from "./state";

const HINT = "Click the chart to pin the allocation under the pointer, with its stack.";

export class Details {
  private readonly summary = make("div");
  private readonly pinned = make("div", { class: "pinned" });
  readonly element = make(
    "div",
    { class: "details", role: "region", "aria-label": "The chosen moment", "aria-live": "polite" },
    this.summary,
    this.pinned,
  );

  constructor(
    private readonly history: History,
    private readonly fragments: Fragments,
  ) {}

  render(state: State, layers: Layers): void {
    this.summary.replaceChildren(this.figures(state.moment));
    const lines = state.row < 0 ? [make("p", { class: "note" }, HINT)] : this.allocation(state.row, layers);
    this.pinned.replaceChildren(...lines);
  }

  private figures(moment: number): HTMLElement {
    const { history } = this;
    const { sampled } = history.data;
    const [allocated, reserved] = [history.allocated[moment], history.reserved[moment]];
    const free = Math.max(0, reserved - allocated);
    const { largest } = this.fragments.at(moment);
    const sized = (value: number): Child => figure(value, bytes(value));
    const inSegments: [string, Child][] = [
      ["reserved", sized(reserved)],
      ["free in segments", sized(free)],
      ["largest free block", sized(largest)],
      ["fragmentation", percentage(fragmentation(largest, free))],
    ];
    return facts([
      ["entry", `${count(moment)} of ${count(history.moments - 1)}`],
      ["time", duration(history.time[moment])],
      [sampled ? "allocated, estimated" : "allocated", sized(allocated)],
      ...(sampled ? [] : inSegments),
    ]);
  }

  private allocation(row: number, layers: Layers): HTMLElement[] {
    const { history } = this;
    const [start, end, stack] = [history.start[row], history.end[row], history.stack[row]];
    const when = (moment: number) => `entry ${count(moment)}, ${duration(history.time[moment])}`;
    const heading = make("h3", {}, make("i", { class: `key k${layers.of[row]}` }));
    heading.append(` ${bytes(history.nbytes[row])} at ${hex(history.address(row))}`);
    const frames = history.framesOf(stack).map(({ file, name, line }) =>
      make("li", {}, make("span", { class: "path" }, sourceLine(file, line)), ` ${name}`),
    );
    const none = stack < 0 ? "Allocated before the history began: the stack is unknown." : "No stack was recorded.";
    return [
      heading,
      facts([
        ["bytes", figure(history.nbytes[row], count(history.nbytes[row]))],
        ["allocated", start ? when(start) : "before the history began"],
        ["freed", end < history.moments ? when(end) : "not in this history"],
        ["lifetime", start && end < history.moments ? duration(history.time[end] - history.time[start]) : "unknown"],
        ["stream", history.data.streams[history.queue[row]]],
        ["pool", history.poolName(history.pool[row])],
      ]),
      make("ol", { class: "stack", "aria-label": "Stack, innermost first" }, ...(frames.length ? frames : [make("li", {}, none)])),
    ];
  }
}
