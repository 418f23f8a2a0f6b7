/** The start of a report: its devices, from the data in the page. */

import { Devices } from "./devices";
import { make } from "./dom";
import { type DeviceData, History } from "./history";
import { KeyHelp } from "./keys";
import { noteErrors } from "./problems";
import { Theme } from "./theme";

async function open(data: DeviceData[]): Promise<void> {
  const [theme, help] = [new Theme(), new KeyHelp()];
  document.body.append(help.dialog);
  document.querySelector(".page-tools")?.append(theme.control(), help.button);
  const articles = [...document.querySelectorAll<HTMLElement>("article")];
  const devices = data.map((each, i) => ({ name: each.name, article: articles[i], history: () => History.read(each) }));
  const shown = new Devices(devices, theme, new AbortController().signal);
  if (shown.choice) articles[0].before(shown.choice);
  await shown.follow();
}

async function start(): Promise<void> {
  const { body } = document;
  noteErrors();
  try {
    const text = document.getElementById("data")?.textContent ?? "[]";
    await open(JSON.parse(text) as DeviceData[]);
    body.dataset.ready = "";
  } catch (error) {
    body.dataset.error = String(error);
    const advice = "The chart needs a browser of 2024 or later (Chrome 123, Firefox 120, Safari 17.5).";
    document.querySelector("main")?.prepend(make("p", { class: "remark" }, `${advice} It reports: ${String(error)}`));
  }
}

void start();
