// A list of any length of which only what is in sight exists; rows come page by page.
import { fill, h } from "./dom.js";

const ROW = 64;
const PAGE = 100;
const KEPT = 30; // pages

export class VirtualList {
  /** `load(offset, limit)` returns rows; `draw(row)` an element's children; `choose(row, index)` is called on selection. */
  constructor({ label, load, draw, choose }) {
    Object.assign(this, { load, draw, choose });
    this.total = 0;
    this.chosen = -1;
    this.pages = new Map();
    this.version = 0;
    this.space = h("div", { class: "space" });
    this.element = h("div", { class: "list", role: "listbox", "aria-label": label, tabindex: "0" }, this.space);
    this.element.addEventListener("scroll", () => this.paint(), { passive: true });
    this.element.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.select(Number(row.dataset.i));
    });
    this.height = 0;
    new ResizeObserver(() => this.fit()).observe(this.element);
  }

  /** Another height of the list, as when filters appear above it, leaves the chosen row in sight if it was. */
  fit() {
    const top = this.chosen * ROW - this.element.scrollTop;
    const wasInSight = this.chosen >= 0 && top >= 0 && top + ROW <= this.height;
    this.height = this.element.clientHeight;
    if (wasInSight) this.reveal();
    this.paint();
  }

  reveal() {
    const top = this.chosen * ROW;
    const view = this.element;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + ROW > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW - view.clientHeight;
  }

  /** Forget every row: another question was asked. */
  reset(total) {
    this.version += 1;
    this.pages.clear();
    this.total = total;
    this.space.style.height = `${total * ROW}px`;
    this.paint();
  }

  row(index) { return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE]; }

  async fetch(page) {
    if (this.pages.has(page)) return;
    const version = this.version;
    this.pages.set(page, []);
    while (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
    const rows = await this.load(page * PAGE, PAGE).catch(() => null);
    if (version !== this.version) return;
    if (!rows) { this.pages.delete(page); return; } // asked again when the reader moves, not at once: the server may be gone
    this.pages.set(page, rows);
    this.paint();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW) - 4);
    const end = Math.min(this.total, Math.ceil((this.element.scrollTop + this.element.clientHeight) / ROW) + 4);
    const rows = [];
    for (let index = first; index < end; index += 1) {
      const row = this.row(index);
      if (!row) this.fetch(Math.floor(index / PAGE));
      const element = h("div", { class: "row", role: "option", id: `row-${index}`, "data-i": index, "aria-selected": String(index === this.chosen), "aria-posinset": index + 1, "aria-setsize": this.total }, row ? this.draw(row) : h("span", { class: "muted" }, "…"));
      element.style.transform = `translateY(${index * ROW}px)`;
      rows.push(element);
    }
    fill(this.space, rows);
    if (this.chosen >= first && this.chosen < end) this.element.setAttribute("aria-activedescendant", `row-${this.chosen}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  async select(index, { quiet = false } = {}) {
    if (!this.total) return;
    this.chosen = Math.max(0, Math.min(this.total - 1, index));
    this.reveal();
    if (!this.row(this.chosen)) await this.fetch(Math.floor(this.chosen / PAGE));
    this.paint();
    const row = this.row(this.chosen);
    if (row && !quiet) this.choose(row, this.chosen);
  }

  move(by) { return this.select(this.chosen < 0 ? 0 : this.chosen + by); }
}
