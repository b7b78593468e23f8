// The episode browser: a list with search and filters, and beside it the time line of one.
import { address, ask, rename } from "./api.js";
import { bytes, debounce, fill, h, num, plural } from "./dom.js";
import { pageKeys } from "./keys.js";
import { VirtualList } from "./list.js";
import { legend } from "./strip.js";
import { events, head } from "./timeline.js";

const MENUS = [
  ["role", "Role"], ["type", "Event type"], ["k", "K"], ["version", "Policy version"], ["reason", "Malformed reason"], ["policy", "Policy"], ["tool", "Tool"],
];
const FLAGS = [["is:correct", "right"], ["is:wrong", "wrong"], ["is:malformed", "malformed"], ["is:truncated", "truncated"], ["is:searched", "used a tool"]];
const SEARCHES = [
  ["capital Peru", "episodes in which both words were said"], ["\"capital of Peru\"", "these words in this order"],
  ["reward<1 tokens>200", "numbers: reward, tokens, step, version, k, events, tools, malformed"], ["step:10..20", "from 10 to 20"],
  ["role:verifier k:3", "labels: role, type, k, version, policy, reason, tool"], ["task:math/*", "texts: task, group, episode, answer"],
  ["alarm:any", "steps at which an alarm lasted"], ["-is:correct", "a minus turns it round"],
];
const SORTS = { newest: "Newest", oldest: "Oldest", best: "Best reward", worst: "Worst reward", longest: "Most tokens", malformed: "Most malformed" };

export class EpisodesPage {
  constructor({ main, runs, values }) {
    this.main = main;
    this.runs = runs;
    this.values = values;
    this.run = runs.find((run) => run.key === values.run) || runs.find((run) => run.keeps_events !== "none") || runs[0];
    this.query = values.q || "";
    this.sort = values.sort in SORTS ? values.sort : "newest";
    this.newest = 0;
    this.checkpoint = values.checkpoint ?? "";
    this.asked = 0;
  }

  async open() {
    this.picker = h("select", { "aria-label": "Run", onchange: () => { location.hash = address("episodes", { run: this.picker.value }); } },
      this.runs.map((run) => h("option", { value: run.key, selected: run.key === this.run.key }, run.key)));
    this.search = h("input", { type: "search", id: "search", class: "search", placeholder: "Search words, or reward<1 role:verifier …", "aria-label": "Search and filter episodes", spellcheck: "false", autocomplete: "off", value: this.query,
      oninput: debounce(() => this.change(this.search.value), 250) });
    this.order = h("select", { "aria-label": "Order", onchange: () => { this.sort = this.order.value; this.find(); } }, Object.entries(SORTS).map(([key, label]) => h("option", { value: key, selected: key === this.sort }, label)));
    this.count = h("span", { class: "count", role: "status" });
    this.fresh = h("button", { class: "fresh", type: "button", hidden: true, onclick: () => this.find() });
    this.menus = h("div", { class: "menus", role: "group", "aria-label": "Filters" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.list = new VirtualList({ label: "Episodes", load: (offset, limit) => this.page(offset, limit), draw: (row) => this.row(row), choose: (row) => this.show(row) });
    this.detail = h("section", { class: "detail", "aria-label": "Episode", tabindex: "-1" });
    this.pane = h("div", { class: "episodes" },
      h("h1", { class: "visually-hidden" }, "Episodes"),
      h("section", { class: "browse", "aria-label": "Browse episodes" },
        h("div", { class: "browse-head" }, h("div", { class: "line" }, this.picker, this.order), this.search, this.menus, this.problem, h("div", { class: "line" }, this.count, h("span", { class: "grow" }), this.fresh)),
        this.list.element),
      this.detail);
    fill(this.main, this.pane);
    pageKeys({
      "/": [() => { this.search.focus(); this.search.select(); }],
      j: [() => this.list.move(1), "next episode"], k: [() => this.list.move(-1), "previous episode"],
      ArrowDown: [() => this.list.move(1)], ArrowUp: [() => this.list.move(-1)],
      PageDown: [() => this.list.move(10)], PageUp: [() => this.list.move(-10)], Home: [() => this.list.select(0)], End: [() => this.list.select(this.list.total - 1)],
      Enter: [() => this.enter(), "read the episode"], n: [() => this.step(1), "next event"], p: [() => this.step(-1), "previous event"],
      e: [() => this.unfold(), "open or close every prompt"], c: [() => this.compare(), "compare this episode with another"], Escape: [() => this.back()],
    }, SEARCHES);
    await this.find({ id: this.values.id, file: this.values.file });
    this.facets().catch(() => {});
  }

  watched() { return [this.run.key]; }

  complain(text) {
    this.problem.hidden = false;
    this.problem.textContent = text;
  }

  pulse(pulses) {
    const { gone, index: now } = pulses[this.run.key] || {};
    if (gone) { this.isGone = true; this.complain(gone); return; }
    if (this.isGone) { this.isGone = false; this.find(); return; }
    if (!now) return;
    const gained = now.num_episodes - this.known;
    const isUntouched = this.list.chosen <= 0 && this.list.element.scrollTop === 0 && !this.values.id;
    const wasPartial = this.state.num_bytes < this.state.total_bytes;
    if (gained !== 0 && isUntouched && (wasPartial || this.list.chosen < 0)) { this.find(); this.facets().catch(() => {}); return; }
    this.fresh.hidden = gained <= 0 || now.num_bytes < now.total_bytes;
    this.fresh.textContent = `${plural(gained, "new episode")}`;
    this.progress(now);
  }

  progress(index) {
    this.state = index;
    const share = index.total_bytes ? index.num_bytes / index.total_bytes : 1;
    fill(this.count, plural(this.list.total, "episode"), this.query ? ` of ${num(index.num_episodes)}` : "",
      share < 0.999 ? h("span", { class: "muted" }, ` · indexing ${Math.round(share * 100)} % of ${bytes(index.total_bytes)}`) : null,
      index.num_damaged ? h("span", { class: "warn-text" }, ` · ${plural(index.num_damaged, "damaged place")} in the log`) : null);
  }

  change(query) {
    this.query = query;
    if (this.search.value !== query) this.search.value = query;
    this.find();
    this.showMenus();
  }

  /** Ask anew, and open an episode where one is named. */
  async find({ id = "", file = "" } = {}) {
    const asked = ++this.asked;
    this.newest = 0;
    let found;
    try {
      found = await ask("episodes", { run: this.run.key, q: this.query, sort: this.sort, limit: 100 });
    } catch (error) {
      this.complain(error.message);
      return;
    }
    if (asked !== this.asked) return;
    this.problem.hidden = true;
    this.newest = found.newest;
    this.known = found.index.num_episodes;
    this.fresh.hidden = true;
    this.list.chosen = -1;
    this.list.reset(found.total);
    this.list.pages.set(0, found.rows);
    this.list.element.scrollTop = 0;
    this.list.paint();
    this.progress(found.index);
    if (id) {
      this.list.chosen = found.rows.findIndex((row) => row.episode_id === id && (!file || row.file === file));
      if (this.list.chosen >= 0) await this.list.select(this.list.chosen); else await this.show({ episode_id: id, file });
    } else if (matchMedia("(min-width: 1000px)").matches && found.total) {
      await this.list.select(0);
      this.values.id = "";
    } else this.empty(found);
    if (!id) this.keep();
  }

  empty(found) {
    this.shown = null;
    this.pane.classList.remove("reading");
    const none = this.run.keeps_events === "none" ? "This run stores no events: its recipe says log.save_events = \"none\"." : this.query ? "No episode is so. Take a filter away." : found.index.total_bytes ? "Nothing indexed yet." : "No episode stored yet; the first step will appear here.";
    fill(this.detail, h("div", { class: "empty" }, found.total ? "Choose an episode." : none));
  }

  async page(offset, limit) {
    const found = await ask("episodes", { run: this.run.key, q: this.query, sort: this.sort, offset, limit, newest: this.newest || "" });
    return found.rows;
  }

  row(row) {
    return [
      h("span", { class: `mark ${row.correct ? "good" : "bad"}`, title: row.correct ? "right" : "wrong" }, row.correct ? "✓" : "✗", h("span", { class: "visually-hidden" }, row.correct ? "right" : "wrong")),
      h("span", { class: "row-text" }, h("span", { class: "row-question", dir: "auto" }, row.question || row.task_id),
        h("span", { class: "row-facts" }, h("span", {}, row.step === null ? row.file.split("/").slice(0, -1).join(" ") : `step ${row.step}`), h("span", {}, `v${row.version}`), row.malformed ? h("span", { class: "badge bad" }, `${row.malformed} malformed`) : null, row.truncated ? h("span", { class: "badge warn" }, "truncated") : null, h("span", {}, plural(row.events, "event")), h("span", {}, `K ≤ ${row.k}`), h("span", {}, `${num(row.tokens)} tok`),
          row.tools ? h("span", {}, plural(row.tools, "tool call")) : null)),
      h("span", { class: "row-end" }, h("b", { class: row.reward > 0 ? "good-text" : "" }, num(row.reward)), h("span", { class: "row-answer", title: "answer", dir: "auto" }, row.answer)),
    ];
  }

  async facets() {
    this.found = await ask("facets", { run: this.run.key });
    this.showMenus();
  }

  showMenus() {
    if (!this.found) return;
    const terms = this.query.match(/\S*"[^"]*"|\S+/g) || [];
    const has = (term) => terms.includes(term);
    const toggle = (term) => this.change((has(term) ? terms.filter((other) => other !== term) : [...terms, term]).join(" "));
    const quoted = (value) => (/[\s"]/.test(value) ? `"${value.replaceAll('"', "*")}"` : value);
    const menus = MENUS.filter(([kind]) => (this.found.labels[kind] || []).length > 1 || (kind === "reason" && this.found.labels[kind]));
    const one = ([kind, label], values) => {
      const now = terms.find((term) => term.startsWith(`${kind}:`)) || "";
      const select = h("select", { "aria-label": label, class: now ? "on" : "", onchange: () => this.change([...terms.filter((term) => !term.startsWith(`${kind}:`)), select.value].filter(Boolean).join(" ")) },
        h("option", { value: "" }, label), values.map(([value, count]) => h("option", { value: `${kind}:${quoted(value)}`, selected: now === `${kind}:${quoted(value)}` }, `${value} (${num(count)})`)));
      if (now && !select.value) { select.append(h("option", { value: now, selected: true }, now)); }
      return select;
    };
    const sorted = (kind) => (["k", "version"].includes(kind) ? [...this.found.labels[kind]].sort((a, b) => a[0] - b[0]) : this.found.labels[kind]);
    fill(this.menus,
      FLAGS.filter(([flag]) => flag !== "is:searched" || this.found.labels.tool).map(([flag, label]) => h("button", { type: "button", class: "toggle", "aria-pressed": String(has(flag)), onclick: () => toggle(flag) }, label)),
      menus.map((menu) => one(menu, sorted(menu[0]))),
      this.found.alarms.length ? one(["alarm", "Alarm"], this.found.alarms) : null);
  }

  keep() {
    rename("episodes", { run: this.run.key, q: this.query, sort: this.sort === "newest" ? "" : this.sort, id: this.shown?.id, file: this.shown?.file, checkpoint: this.checkpoint });
  }

  /** Show an episode at once, then what was learned from it. */
  async show(row) {
    const wanted = { id: row.episode_id, file: row.file || "" };
    this.shown = wanted;
    this.pane.classList.add("chosen");
    this.keep();
    const isCurrent = () => this.shown === wanted;
    try {
      const plain = await ask("episode", { run: this.run.key, id: wanted.id, file: wanted.file });
      if (!isCurrent()) return;
      wanted.file = plain.file;
      this.answer = plain;
      this.drawDetail();
      if (plain.kind !== "run") return;
      await this.learn(isCurrent);
    } catch (error) {
      if (isCurrent()) fill(this.detail, h("div", { class: "empty" }, h("p", { class: "problem", role: "alert" }, error.message)));
    }
  }

  async learn(isCurrent = () => true) {
    const step = this.checkpoint;
    this.note(step === "" ? "Computing advantages …" : `Scoring with the checkpoint of step ${step} …`);
    const asked = this.shown;
    try {
      const found = await ask("episode", { run: this.run.key, id: asked.id, file: asked.file, credit: true, checkpoint: step });
      if (!isCurrent() || step !== this.checkpoint || asked !== this.shown) return;
      this.answer = found;
      this.drawDetail();
    } catch (error) {
      if (isCurrent()) this.note(error.message, true);
    }
  }

  note(text, isProblem = false) {
    const place = this.detail.querySelector(".note");
    if (place) { place.textContent = text; place.className = `note ${isProblem ? "problem" : "muted"} ${text.endsWith("…") ? "busy" : ""}`; }
  }

  drawDetail() {
    const { timeline, checkpoints, kind } = this.answer;
    const top = this.detail.scrollTop;
    const open = new Set([...this.detail.querySelectorAll("details")].map((item, index) => (item.open ? index : -1)));
    const isSame = this.drawn === timeline.episode_id + this.shown.file;
    this.drawn = timeline.episode_id + this.shown.file;
    const source = { run: this.run.key, id: this.shown.id, file: this.shown.file };
    const select = h("select", { id: "checkpoint", "aria-label": "Compare with a checkpoint", onchange: () => { this.checkpoint = select.value; this.keep(); this.learn(); } },
      h("option", { value: "" }, "no checkpoint"), checkpoints.map((item) => h("option", { value: item.step, selected: String(item.step) === String(this.checkpoint) }, `step ${item.step} (${bytes(item.num_bytes)})`)));
    fill(this.detail,
      h("div", { class: "detail-bar" }, h("button", { class: "icon back", type: "button", "aria-label": "Back to the list", onclick: () => this.back() }, "←"),
        kind === "run" && checkpoints.length ? h("label", { class: "inline" }, "Log-probs of ", select) : null, this.checkpoint !== "" ? legend(true) : null, h("span", { class: "note muted", role: "status" }), h("span", { class: "grow" }), this.list.chosen >= 0 ? h("span", { class: "muted small" }, `${num(this.list.chosen + 1)} of ${num(this.list.total)}`) : null,
        h("a", { class: "button", href: address("compare", { left: JSON.stringify([this.run.key, this.shown.id, this.shown.file, this.checkpoint]) }) }, "Compare …")),
      head(timeline), events(timeline, source));
    this.detail.scrollTop = isSame ? top : 0;
    if (isSame && !this.checkpoint) [...this.detail.querySelectorAll("details")].forEach((item, index) => { if (open.has(index)) item.open = true; });
  }

  enter() {
    if (this.list.chosen < 0) { this.list.select(0); }
    this.pane.classList.add("reading");
    this.detail.focus();
  }

  back() {
    this.pane.classList.remove("reading", "chosen");
    this.list.element.focus();
  }

  step(by) {
    const items = [...this.detail.querySelectorAll(".event")];
    const at = items.findIndex((item) => item === document.activeElement);
    const next = items[Math.max(0, Math.min(items.length - 1, at + by))];
    next?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "start" });
  }

  unfold() {
    const prompts = [...this.detail.querySelectorAll("details.prompt")];
    const open = prompts.some((prompt) => !prompt.open);
    for (const prompt of prompts) prompt.open = open;
  }

  compare() { if (this.shown) location.hash = address("compare", { left: JSON.stringify([this.run.key, this.shown.id, this.shown.file, this.checkpoint]) }); }

  theme() {}

  close() { this.asked += 1; }
}
