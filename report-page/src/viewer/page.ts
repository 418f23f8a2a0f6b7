/** The viewer page: a file that is dropped or chosen is read in a worker and shown as a report. */

import { PlainColumns } from "../columns";
import { Devices } from "../devices";
import { button, make } from "../dom";
import { bytes } from "../format";
import { History } from "../history";
import { KeyHelp } from "../keys";
import { noteErrors } from "../problems";
import { Theme } from "../theme";
import { articleOf } from "./article";
import type { Device } from "./device";
import { printable, shortened } from "./labels";
import { Patterns, type Rules } from "./rules";
import type { Answer, Request } from "./worker";

const MOST_TEXT = 500; // characters of a name or an error

class Viewer {
  private readonly theme = new Theme();
  private readonly input = document.querySelector<HTMLInputElement>("#file");
  private readonly state = make("p", { class: "state", role: "status" });
  private readonly bar = make("progress", { "aria-label": "Progress of reading" });
  private readonly problem = make("p", { class: "problem", role: "alert", hidden: "" });
  private readonly cancel = button("Cancel", "Stop reading the file", () => this.stop("Cancelled."));
  private readonly shown = make("div", { class: "shown" });
  private worker: Worker | null = null;
  private gone = new AbortController();
  private readonly patterns: Patterns;

  constructor(
    private readonly rules: Rules,
    private readonly binary: string,
    private readonly script: string,
  ) {
    this.patterns = new Patterns(rules);
    const help = new KeyHelp();
    document.body.append(help.dialog);
    document.querySelector(".page-tools")?.append(this.theme.control(), help.button);
    const busy = make("div", { class: "busy" }, this.bar, this.cancel);
    document.querySelector(".drop .body")?.append(busy, this.state, this.problem);
    document.querySelector("main")?.append(this.shown);
    this.busy(false);
    this.input?.addEventListener("change", () => this.open(this.input?.files?.[0]));
    addEventListener("dragover", (event) => {
      event.preventDefault();
      document.body.classList.add("over");
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("over");
    });
    addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("over");
      this.open(event.dataTransfer?.files[0]);
    });
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.worker) this.stop("Cancelled.");
    });
  }

  private open(file: File | undefined): void {
    if (!file) return;
    this.stop("");
    if (this.input) this.input.value = ""; // so that the same file can be chosen again
    this.gone.abort();
    this.shown.replaceChildren();
    delete document.body.dataset.ready;
    const name = this.text(file.name);
    this.state.textContent = `Reading ${name} (${bytes(file.size)}) …`;
    this.bar.removeAttribute("value");
    this.busy(true);
    const address = URL.createObjectURL(new Blob([this.script], { type: "text/javascript" }));
    const worker = (this.worker = new Worker(address));
    worker.addEventListener("message", ({ data }: MessageEvent<Answer>) => {
      if (worker === this.worker) this.hear(data, file, name);
    });
    worker.addEventListener("error", (event) => {
      event.preventDefault();
      if (worker === this.worker) this.fail(name, event.message || "the reader has stopped");
    });
    const binary = Uint8Array.from(atob(this.binary), (letter) => letter.charCodeAt(0));
    worker.postMessage({ file, rules: this.rules, binary } satisfies Request);
    URL.revokeObjectURL(address);
  }

  private hear({ step, done, total, devices, error }: Answer, file: File, name: string): void {
    if (error !== undefined) this.fail(name, error);
    else if (devices) this.show(devices, file, name);
    else if (step) {
      this.state.textContent = `${name}: ${step} …`;
      if (total) [this.bar.max, this.bar.value] = [total, done ?? 0];
      else this.bar.removeAttribute("value");
    }
  }

  private show(devices: Device[], file: File, name: string): void {
    this.stop("");
    this.gone = new AbortController();
    try {
      history.replaceState(null, "", location.pathname + location.search); // the state was that of another file
    } catch {
      // Some browsers refuse this for pages that are files.
    }
    const articles = devices.map((device) => articleOf(device, name));
    const entries = devices.map((device, i) => ({
      name: device.name + (devices.length > 1 && device.summary.ooms ? " · out of memory" : ""),
      article: articles[i],
      history: () => new History(device, new PlainColumns(device.columns)),
    }));
    const found = new Devices(entries, this.theme, this.gone.signal);
    this.shown.replaceChildren(...(found.choice ? [found.choice] : []), ...articles);
    this.state.textContent = `${name}, ${bytes(file.size)}`;
    document.title = `${name} · forebay`;
    void found.follow().then(() => (document.body.dataset.ready = ""));
  }

  private fail(name: string, reason: string): void {
    this.stop("");
    this.problem.textContent = `${name}: ${this.text(reason)}`;
    this.problem.hidden = false;
  }

  /** Return text that may come from a file, without what would control the order of the page's text. */
  private text(given: string): string {
    return printable(shortened(given, MOST_TEXT), this.patterns);
  }

  /** End the worker, whatever it does. */
  private stop(text: string): void {
    this.worker?.terminate();
    this.worker = null;
    this.state.textContent = text;
    this.problem.hidden = true;
    this.busy(false);
  }

  private busy(is: boolean): void {
    for (const element of [this.bar, this.cancel]) element.hidden = !is;
  }
}

function textOf(id: string): string {
  return document.getElementById(id)?.textContent ?? "";
}

noteErrors();
new Viewer(JSON.parse(textOf("rules")) as Rules, textOf("reader"), textOf("worker"));
document.body.dataset.loaded = "";
