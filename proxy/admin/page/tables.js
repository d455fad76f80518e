// A table can be sorted by each column, and shows only rows with the words of the filter.
import { count, element, put } from "./format.js";

const tables = [];
let words = [];

export function filter(text) {
  words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const table of tables) table.arrange();
}

// Table has columns of [name, meaning, kind]; the kind is "text" or "figure". The first column is
// the head of each row.
export class Table {
  constructor(id, section, columns, most = Infinity) {
    Object.assign(this, { id, columns, most, rows: new Map(), data: [], sorted: null, rising: false });
    const title = section.querySelector("h2");
    this.heads = columns.map(([name, means, kind], at) => {
      const button = element("button", { type: "button", title: means }, name);
      button.addEventListener("click", () => this.sort(at));
      return element("th", { role: "columnheader", scope: "col", class: kind }, button);
    });
    this.body = element("tbody", { role: "rowgroup", id });
    this.table = element("table", { role: "table", "aria-labelledby": title.id },
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...this.heads)), this.body);
    this.note = element("p", { class: "note", role: "status" });
    const meanings = columns.flatMap(([name, means]) => [element("dt", {}, name), element("dd", {}, means)]);
    this.legend = element("details", {}, element("summary", {}, "What the columns mean"), element("dl", {}, ...meanings));
    this.table.hidden = this.legend.hidden = true;
    section.append(this.table, this.note, this.legend);
    tables.push(this);
  }

  // sort sorts by a column: first the way that is of more use, then the other way, then not.
  sort(at) {
    const first = this.columns[at][2] === "text";
    if (this.sorted !== at) [this.sorted, this.rising] = [at, first];
    else if (this.rising === first) this.rising = !first;
    else this.sorted = null;
    this.heads.forEach((head, i) => {
      if (i === this.sorted) head.setAttribute("aria-sort", this.rising ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    this.arrange();
  }

  // show takes rows of { id, head, small, cells }; a cell is a text, or [text, value, class].
  show(data) {
    this.data = data.map((row) => ({ ...row, cells: row.cells.map((cell) => (Array.isArray(cell) ? cell : [cell, cell])) }));
    this.table.hidden = this.legend.hidden = data.length === 0;
    this.arrange();
  }

  arrange() {
    const text = (row) => [row.head, row.small, ...row.cells.filter((_, i) => this.columns[i + 1][2] === "text").map(([text]) => text)].join(" ").toLowerCase();
    const found = this.data.filter((row) => words.every((word) => text(row).includes(word)));
    const value = (row) => (this.sorted === 0 ? row.head : row.cells[this.sorted - 1][1]);
    if (this.sorted !== null) {
      found.sort((a, b) => (this.rising ? 1 : -1) * compare(value(a), value(b)));
    }
    const shown = found.slice(0, this.most), seen = new Set(shown.map((row) => row.id));
    for (const [id, row] of this.rows) {
      if (seen.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    shown.forEach((of, i) => {
      if (!this.rows.has(of.id)) this.rows.set(of.id, this.newRow());
      const row = this.rows.get(of.id), [head, ...cells] = row.children;
      put(head.firstChild, of.head);
      put(head.lastChild, of.small);
      of.cells.forEach(([text, , name], at) => {
        put(cells[at], text);
        if (name !== undefined) cells[at].className = name;
      });
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] || null);
    });
    put(this.note, shown.length === this.data.length ? "" : `${count(shown.length)} of ${count(this.data.length)} rows`);
  }

  newRow() {
    const head = element("th", { role: "rowheader", scope: "row" }, element("bdi"), " ", element("small"));
    const cells = this.columns.slice(1).map(([name, , kind]) => element("td", { role: "cell", class: kind, "data-label": name }));
    return element("tr", { role: "row" }, head, ...cells);
  }
}

// compare puts missing values first.
function compare(a, b) {
  if (a === null || b === null) return (a === null ? 0 : 1) - (b === null ? 0 : 1);
  return typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en");
}
