/** The explorer of one device: the chart, and the sections that show its chosen moment. */

import { Bands } from "./bands";
import { Chart } from "./chart";
import { Details } from "./details";
import { button, choice, make, section } from "./dom";
import { FlameGraph } from "./flame";
import { Fragments } from "./fragments";
import { Growth } from "./growth";
import type { History } from "./history";
import { makeLayers } from "./layers";
import { oomSection } from "./ooms";
import { Pools } from "./pools";
import { rangeSection } from "./ranges";
import { SegmentTable } from "./segment-table";
import { Segments } from "./segments";
import { Sites } from "./sites";
import { AXES, type Axis, type Change, COLORS, type Color, parse, type State, written } from "./state";
import type { Theme } from "./theme";

const PAUSE = 120; // milliseconds without a change, after which everything but the chart follows
const TYPING = 200;

export class Explorer {
  private readonly defaults: State;
  private state: State;
  private change: Change = () => undefined;

  constructor(
    private readonly element: HTMLElement,
    private readonly history: History,
    private readonly device: number,
    theme: Theme,
    private readonly gone: AbortSignal,
  ) {
    const last = history.moments - 1;
    const axis: Axis = history.time[last] > 0 ? "time" : "entry";
    const moment = history.peak;
    this.defaults = { from: 0, to: last, moment, row: -1, a: -1, b: -1, axis, color: "site", search: "" };
    this.state = this.read();
    this.build(theme);
  }

  /** Show the state that the address of the page names. */
  follow(): void {
    this.change(this.read());
  }

  /** Write the state into the address of the page. */
  link(): void {
    const text = written(this.state, this.defaults, this.device);
    if (text === location.hash.slice(1) || this.element.offsetParent === null) return;
    try {
      window.history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    } catch {
      // Browsers limit how often a page may do this.
    }
  }

  private read(): State {
    return parse(location.hash, this.defaults, this.history.moments, this.history.count);
  }

  private build(theme: Theme): void {
    const { history } = this;
    let layers = makeLayers(history, this.state.color, this.state.search);
    let frame = 0;
    let pause = 0;
    const change: Change = (changed) => {
      delete this.element.dataset.filled;
      const { color, search: text } = this.state;
      this.state = { ...this.state, ...changed };
      if (this.state.color !== color || this.state.search !== text) {
        layers = makeLayers(history, this.state.color, this.state.search);
      }
      frame ||= requestAnimationFrame(draw);
    };
    const table = new SegmentTable(history);
    const fragments = new Fragments(history, table);
    const chart = new Chart(history, fragments, theme, () => this.state, layers, change);
    const bands = new Bands(history, theme, change);
    const details = new Details(history, fragments);
    const reserving = history.data.sampled ? [] : [new Segments(history, table, theme, change), new Pools(history, table)];
    const panels = [...reserving, new FlameGraph(history), new Sites(history, change), new Growth(history, change)];
    const controls = makeControls(chart, history, this.state, change, this.gone);
    const draw = (): void => {
      frame = 0;
      chart.render(this.state, layers);
      bands.render(this.state);
      details.render(this.state, layers);
      controls.show(this.state);
      clearTimeout(pause);
      pause = window.setTimeout(fill, PAUSE);
    };
    const fill = (): void => {
      chart.refine();
      for (const panel of panels) panel.render(this.state, layers);
      this.link();
      this.element.dataset.filled = "";
    };
    this.change = change;

    const { card, tools, body } = section("memory", history.moments > 1 ? "Memory over time" : "Memory in use");
    tools.append(...controls.elements);
    chart.element.querySelector(".field")?.after(bands.element);
    body.append(chart.element, details.element);
    const more = [oomSection(history, change), rangeSection(history, change)];
    const sections = [card, ...more.filter((each) => each !== null), ...panels.map((panel) => panel.element)];
    this.element.replaceChildren(...sections);
    chart.render(this.state, layers);
    bands.render(this.state);
    details.render(this.state, layers);
    // The first picture is shown before the other sections are computed.
    requestAnimationFrame(() => {
      document.body.dataset.drawn ??= String(Math.round(performance.now()));
      pause = window.setTimeout(fill);
    });
  }
}

interface Controls {
  elements: HTMLElement[];
  show: (state: State) => void;
}

function makeControls(
  chart: Chart,
  history: History,
  state: State,
  change: Change,
  gone: AbortSignal,
): Controls {
  const search = make("input", { type: "search", placeholder: "file, function or 0x address", "aria-label": "Search stacks" });
  search.value = state.search;
  let typed = 0;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = window.setTimeout(() => change({ search: search.value }), TYPING);
  });
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || !search.offsetParent) return;
    event.preventDefault();
    search.focus();
  }, { signal: gone });
  const color = choice("Color", COLORS, state.color, (name) => change({ color: name as Color }));
  const axis = choice("Axis", AXES, state.axis, (name) => change({ axis: name as Axis }));
  return {
    elements: [
      search,
      color.label,
      axis.label,
      button("−", "Zoom out", () => chart.zoom(2)),
      button("+", "Zoom in", () => chart.zoom(0.5)),
      button("All", "Show the whole history", () => change({ from: 0, to: history.moments - 1 })),
      button("Peak", "Go to the peak", () => change({ moment: history.peak, row: -1 })),
    ],
    show: (shown) => {
      if (document.activeElement !== search) search.value = shown.search;
      color.select.value = shown.color;
      axis.select.value = shown.axis;
    },
  };
}
