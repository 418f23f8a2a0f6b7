/** The devices of a page, of which one is shown: its history is read when it is shown for the first time. */

import { button, make } from "./dom";
import { Explorer } from "./explorer";
import type { History } from "./history";
import type { Theme } from "./theme";

export interface DeviceOnPage {
  name: string;
  article: HTMLElement;
  history: () => Promise<History> | History;
}

export class Devices {
  /** The choice between the devices; null for one. */
  readonly choice: HTMLElement | null;
  private readonly explorers = new Map<number, Explorer>();
  private readonly buttons: HTMLButtonElement[];

  /** `gone` ends what the explorers do outside of their articles. */
  constructor(
    private readonly devices: DeviceOnPage[],
    private readonly theme: Theme,
    private readonly gone: AbortSignal,
  ) {
    this.buttons = devices.map(({ name }, i) => button(name, `Show ${name}`, () => void this.show(i)));
    this.choice = devices.length > 1 ? make("nav", { class: "devices", "aria-label": "Devices" }, ...this.buttons) : null;
    gone.addEventListener("abort", () => theme.forget());
    addEventListener("hashchange", () => void this.follow(), { signal: gone });
  }

  /** Show the device and the state that the address names. */
  async follow(): Promise<void> {
    const device = Number(new URLSearchParams(location.hash.slice(1)).get("device") ?? 0);
    const shown = this.devices[device] ? device : 0;
    const known = this.explorers.get(shown);
    await this.open(shown);
    known?.follow();
  }

  private async show(device: number): Promise<void> {
    await this.open(device);
    this.explorers.get(device)?.link();
  }

  private async open(device: number): Promise<void> {
    this.devices.forEach(({ article }, i) => (article.hidden = i !== device));
    this.buttons.forEach((each, i) => each.setAttribute("aria-pressed", String(i === device)));
    const element = this.devices[device]?.article.querySelector<HTMLElement>(".explorer");
    if (!element || this.explorers.has(device)) return;
    const history = await this.devices[device].history();
    this.explorers.set(device, new Explorer(element, history, device, this.theme, this.gone));
  }
}
