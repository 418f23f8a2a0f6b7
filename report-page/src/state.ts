/** The state of the explorer, and its text in the address of the page. */

export type Axis = "time" | "entry";
export type Color = "site" | "size" | "stream" | "pool";

export interface State {
  from: number; // the edges of what the chart shows: moments, or places between two
  to: number;
  moment: number; // the chosen moment
  row: number; // the pinned allocation; -1: none
  a: number; // marked moments; -1: none
  b: number;
  axis: Axis;
  color: Color;
  search: string;
}

export type Change = (change: Partial<State>) => void;

export const AXES: Record<Axis, string> = { time: "by time", entry: "by entry" };
export const COLORS: Record<Color, string> = { site: "by site", size: "by size", stream: "by stream", pool: "by pool" };

const NUMBERS = ["moment", "row", "a", "b"] as const;
const EDGES = ["from", "to"] as const;
const MAX_SEARCH = 200; // characters

/** Read a state from the part of an address after "#". What is missing or not valid has its default. */
export function parse(hash: string, defaults: State, moments: number, rows: number): State {
  const state = { ...defaults };
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  for (const name of NUMBERS) {
    const number = Number(given.get(name) ?? NaN);
    if (Number.isInteger(number) && number >= -1) state[name] = number;
  }
  for (const name of EDGES) {
    const number = Number(given.get(name) ?? NaN);
    if (Number.isFinite(number) && number >= 0) state[name] = number;
  }
  const last = moments - 1;
  state.from = Math.max(0, Math.min(state.from, last));
  state.to = Math.max(state.from, Math.min(state.to, last));
  state.moment = Math.max(0, Math.min(state.moment, last));
  state.a = Math.min(state.a, last);
  state.b = Math.min(state.b, last);
  if (state.row >= rows) state.row = -1;
  const [axis, color] = [given.get("axis") ?? "", given.get("color") ?? ""];
  if (Object.hasOwn(AXES, axis)) state.axis = axis as Axis;
  if (Object.hasOwn(COLORS, color)) state.color = color as Color;
  state.search = (given.get("search") ?? "").slice(0, MAX_SEARCH);
  return state;
}

/** Return the text of what differs from the defaults. */
export function written(state: State, defaults: State, device: number): string {
  const values = new URLSearchParams(device ? { device: String(device) } : {});
  for (const name of Object.keys(state) as (keyof State)[])
    if (state[name] !== defaults[name]) values.set(name, String(state[name]));
  return values.toString();
}
