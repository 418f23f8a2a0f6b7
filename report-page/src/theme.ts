/** Light and dark: colors of the style sheet for canvases, and the switch. */

import { choice } from "./dom";

const KEY = "forebay-theme";

export class Theme {
  private readonly probe = document.createElement("span");
  private readonly known = new Map<string, string>();
  private watchers: (() => void)[] = [];

  constructor() {
    this.probe.hidden = true;
    document.body.append(this.probe);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.changed());
    this.choose(stored());
  }

  /** Call `action` when colors change. */
  watch(action: () => void): void {
    this.watchers.push(action);
  }

  /** Call nothing any more, as what watched is gone. */
  forget(): void {
    this.watchers = [];
  }

  /** Return a color of the style sheet as text that a canvas understands. */
  color(name: string): string {
    let color = this.known.get(name);
    if (!color) {
      this.probe.style.color = `var(--${name})`;
      this.known.set(name, (color = getComputedStyle(this.probe).color));
    }
    return color;
  }

  rgb(name: string): [number, number, number] {
    const [red, green, blue] = (this.color(name).match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
    return [red, green, blue];
  }

  /** Return the list that switches between light and dark. */
  control(): HTMLElement {
    const options = { auto: "as the system", light: "light", dark: "dark" };
    return choice("Theme", options, document.documentElement.dataset.theme ?? "auto", (name) => {
      this.choose(name);
      try {
        localStorage.setItem(KEY, name);
      } catch {
        // Some browsers store nothing for pages that are files.
      }
    }).label;
  }

  private choose(name: string): void {
    if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    this.changed();
  }

  private changed(): void {
    this.known.clear();
    for (const watcher of this.watchers) watcher();
  }
}

function stored(): string {
  try {
    return localStorage.getItem(KEY) ?? "auto";
  } catch {
    return "auto";
  }
}
