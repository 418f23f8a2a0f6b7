/** The start of the page: reads the data of the chosen device when it is shown for the first time. */

import { button, make } from "./dom";
import { Explorer } from "./explorer";
import { type DeviceData, History } from "./history";
import { KeyHelp } from "./keys";
import { Theme } from "./theme";

class Page {
  private readonly theme = new Theme();
  private readonly help = new KeyHelp();
  private readonly articles = [...document.querySelectorAll<HTMLElement>("article")];
  private readonly explorers = new Map<number, Explorer>();
  private readonly buttons: HTMLButtonElement[];

  constructor(private readonly data: DeviceData[]) {
    document.body.append(this.help.dialog);
    document.querySelector(".page-tools")?.append(this.theme.control(), this.help.button);
    this.buttons = data.map(({ name }, i) => button(name, `Show ${name}`, () => void this.show(i)));
    if (data.length > 1) this.articles[0].before(make("nav", { class: "devices", "aria-label": "Devices" }, ...this.buttons));
    addEventListener("hashchange", () => void this.follow());
  }

  /** Show the device and the state that the address names. */
  async follow(): Promise<void> {
    const device = Number(new URLSearchParams(location.hash.slice(1)).get("device") ?? 0);
    const shown = this.articles[device] ? device : 0;
    const known = this.explorers.get(shown);
    await this.open(shown);
    known?.follow();
  }

  private async show(device: number): Promise<void> {
    await this.open(device);
    this.explorers.get(device)?.link();
  }

  private async open(device: number): Promise<void> {
    this.articles.forEach((article, i) => (article.hidden = i !== device));
    this.buttons.forEach((each, i) => each.setAttribute("aria-pressed", String(i === device)));
    const element = this.articles[device]?.querySelector<HTMLElement>(".explorer");
    if (!element || this.explorers.has(device)) return;
    const history = await History.read(this.data[device]);
    this.explorers.set(device, new Explorer(element, history, device, this.theme));
  }
}

async function start(): Promise<void> {
  const { body } = document;
  addEventListener("error", (event) => (body.dataset.error = event.message));
  addEventListener("unhandledrejection", (event) => (body.dataset.error = String(event.reason)));
  addEventListener("securitypolicyviolation", (event) => (body.dataset.error = `blocked: ${event.violatedDirective}`));
  try {
    const text = document.getElementById("data")?.textContent ?? "[]";
    await new Page(JSON.parse(text) as DeviceData[]).follow();
    body.dataset.ready = "";
  } catch (error) {
    body.dataset.error = String(error);
    const advice = "The chart needs a browser of 2024 or later (Chrome 123, Firefox 120, Safari 17.5).";
    document.querySelector("main")?.prepend(make("p", { class: "remark" }, `${advice} It reports: ${String(error)}`));
  }
}

void start();
