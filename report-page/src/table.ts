/** A table whose rows can be sorted by each column. */

import { type Child, button, make } from "./dom";
import { count } from "./format";

/** What a cell is sorted by, and what it shows. */
export type Cell = [key: number | string, content: Child];

export class SortedTable {
  readonly element = make("div", { class: "scroll", tabindex: "0" });
  private column: number;
  private descending = true;
  private rows: Cell[][] = [];
  private readonly body = make("tbody");
  private readonly heads: HTMLTableCellElement[];
  private readonly more = make("p", { class: "note" });

  constructor(names: string[], by: number, private readonly most = 200) {
    this.column = by;
    this.heads = names.map((name, i) =>
      make("th", { scope: "col" }, button(name, `Sort by ${name}`, () => this.sortBy(i))),
    );
    this.element.append(make("table", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body), this.more);
  }

  show(rows: Cell[][]): void {
    this.rows = rows;
    const { column, descending } = this;
    const sorted = [...rows].sort((one, other) => {
      const [a, b] = [one[column][0], other[column][0]];
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
      return descending ? -order : order;
    });
    const shown = sorted.slice(0, this.most).map((row) => {
      const cells = row.map(([key, content]) => make("td", typeof key === "number" ? { "data-v": `${key}` } : {}, content));
      return make("tr", {}, ...cells);
    });
    this.body.replaceChildren(...shown);
    this.heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const hidden = rows.length - this.most;
    this.more.textContent = hidden > 0 ? `${count(hidden)} more rows are not shown.` : "";
  }

  private sortBy(column: number): void {
    this.descending = column === this.column ? !this.descending : typeof this.rows[0]?.[column][0] === "number";
    this.column = column;
    this.show(this.rows);
  }
}
