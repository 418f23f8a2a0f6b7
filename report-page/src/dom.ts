/** Elements of the page. Text enters it only as text nodes and attributes, so that it cannot become markup. */

export type Child = Node | string;

export function make<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A number with its exact value for programs. */
export function figure(value: number, text: string): HTMLDataElement {
  return make("data", { value: String(value) }, text);
}

export function button(text: string, label: string, action: () => void): HTMLButtonElement {
  const element = make("button", { type: "button", class: "tool", title: label, "aria-label": label }, text);
  element.addEventListener("click", action);
  return element;
}

export interface Choice {
  label: HTMLLabelElement;
  select: HTMLSelectElement;
}

/** A labelled list of options. */
export function choice(
  name: string,
  options: Record<string, string>,
  chosen: string,
  action: (value: string) => void,
): Choice {
  const select = make("select");
  for (const [value, text] of Object.entries(options)) select.append(make("option", { value }, text));
  select.value = chosen;
  select.addEventListener("change", () => action(select.value));
  return { select, label: make("label", { class: "tool-label" }, `${name} `, select) };
}

export interface Card {
  card: HTMLElement;
  tools: HTMLElement;
  body: HTMLElement;
}

/** A section with a heading, a place for buttons, and a body. */
export function section(name: string, heading: string, note = ""): Card {
  const tools = make("div", { class: "tools" });
  const body = make("div", { class: "body" });
  const head = make("div", { class: "card-head" }, make("h2", {}, heading), tools);
  const card = make("section", { class: `card ${name}`, "aria-label": heading }, head);
  if (note) card.append(make("p", { class: "note" }, note));
  card.append(body);
  return { card, tools, body };
}

/** Names and values, as a list. */
export function facts(pairs: [string, Child][]): HTMLDListElement {
  const rows = pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  return make("dl", { class: "facts" }, ...rows);
}

/** One line of a tooltip. */
export function tipRow(key: string, name: string, value: string): HTMLElement {
  return make("div", {}, make("i", { class: `key ${key}` }), make("span", {}, name), make("b", {}, value));
}

/** Show a tooltip beside the pointer, within the window. */
export function showTip(tip: HTMLElement, x: number, y: number, ...children: Child[]): void {
  tip.replaceChildren(...children);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 18 + width > innerWidth ? x - 18 - width : x + 18;
  tip.style.left = `${Math.max(6, Math.min(left, innerWidth - width - 6))}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - height - 6))}px`;
}
