// Training curves: several runs over one another, by step, tokens or time.
import { ask, remember, rename } from "./api.js";
import { Chart, ink, swatch } from "./chart.js";
import { debounce, fill, h, num, plural } from "./dom.js";
import { pageKeys } from "./keys.js";

const HUES = 8;
const SHOWN_AT_FIRST = 6;
const KEY_METRICS = [
  "eval/accuracy", "eval/pass_at_k", "rollout/accuracy", "rollout/reward_mean", "rollout/valid_rate/{role}",
  "rollout/response_length/{role}", "rollout/cardinality/{event_type}", "train/clip_fraction", "train/ratio_max",
  "train/grad_norm", "train/entropy", "train/engine_gap", "rollout/env/{metric}", "perf/tokens_per_s", "time/step_s",
];
const GROUPS = ["rollout", "train", "eval", "time", "perf"];
const AXES = [["step", "Step"], ["tokens", "Tokens"], ["seconds", "Time"]];
const TITLES = { "eval/accuracy": "Held-out accuracy", "rollout/accuracy": "Training accuracy", "rollout/reward_mean": "Team reward",
  "rollout/valid_rate/{role}": "Valid responses", "rollout/response_length/{role}": "Response length", "train/clip_fraction": "Clipped units",
  "rollout/cardinality/{event_type}": "Cardinality K", "train/grad_norm": "Gradient norm", "train/entropy": "Entropy", "train/ratio_max": "Largest set ratio",
  "train/engine_gap": "Engine gap", "perf/tokens_per_s": "Sampling speed", "time/step_s": "Time of a step", "eval/pass_at_k": "Held-out Pass@k" };

export class CurvesPage {
  constructor({ main, runs, values }) {
    this.main = main;
    this.runs = runs.filter((run) => run.kind === "run");
    this.values = values;
    const wanted = (values.runs || "").split("|").filter((key) => this.runs.some((run) => run.key === key));
    this.shown = new Set(wanted.length ? wanted : this.runs.slice(0, SHOWN_AT_FIRST).map((run) => run.key));
    this.axis = AXES.some(([key]) => key === values.x) ? values.x : "step";
    this.weight = Number(values.smooth ?? remember.get("smooth", 0.5));
    this.group = values.group || "key";
    this.filter = values.metric || "";
    this.data = new Map();
    this.charts = new Map();
    this.hues = new Map(); // a run keeps its colour when others leave
    this.gone = [];
    this.redraw = debounce(() => this.draw(), 60);
  }

  async open() {
    if (!this.runs.length) {
      fill(this.main, h("div", { class: "empty" }, h("h1", {}, "No training runs"), h("p", {}, "There are evaluations here, whose episodes can be read. Curves come with the directory of a run.")));
      return;
    }
    this.search = h("input", { type: "search", id: "metric-filter", placeholder: "Filter metrics", "aria-label": "Filter metrics", value: this.filter,
      oninput: () => { this.filter = this.search.value; this.redraw(); } });
    this.slider = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: this.weight, id: "smoothing", "aria-label": "Smoothing",
      oninput: () => { this.weight = Number(this.slider.value); this.amount.textContent = num(this.weight); remember.set("smooth", this.weight); this.redraw(); } });
    this.amount = h("output", { for: "smoothing" }, num(this.weight));
    this.axes = h("div", { class: "segments", role: "group", "aria-label": "Horizontal axis" });
    this.groups = h("div", { class: "segments wrap", role: "group", "aria-label": "Group of metrics" });
    this.list = h("ul", { class: "run-list", "aria-label": "Runs" });
    this.alarms = h("div", { class: "alarms", role: "status" });
    this.grid = h("div", { class: "charts" });
    fill(this.main, h("div", { class: "curves" },
      h("h1", { class: "visually-hidden" }, "Training curves"),
      h("aside", { class: "side", "aria-label": "Runs" }, h("h2", {}, "Runs"), this.list),
      h("section", { class: "content", "aria-label": "Curves" },
        h("div", { class: "toolbar" }, this.groups, h("span", { class: "grow" }), h("label", { class: "inline" }, "Smoothing ", this.slider, this.amount), this.axes, this.search),
        this.alarms, this.grid)));
    pageKeys({
      "/": [() => this.search.focus()],
      x: [() => this.setAxis(AXES[(AXES.findIndex(([key]) => key === this.axis) + 1) % AXES.length][0]), "next horizontal axis"],
      "[": [() => this.nudge(-0.1), "smooth less"],
      "]": [() => this.nudge(0.1), "smooth more"],
    });
    this.showAxes();
    this.showRuns();
    await this.load();
  }

  async load() {
    await Promise.all([...this.shown].map((key) => this.loadRun(key)));
    this.draw();
  }

  /** Fetch what a run has gained; everything when it is new here or began anew. */
  async loadRun(key) {
    const known = this.data.get(key);
    const described = await ask("metrics", { run: key });
    const names = described.names.map((metric) => metric.name);
    const isSame = known && known.epoch === described.epoch && known.names.length === names.length;
    const after = isSame ? known.step.length : 0;
    const found = await ask("curves", { run: key, name: names.length ? names : ["none"], after, epoch: isSame ? known.epoch : -1 });
    const fresh = { ...described, names, metrics: described.names, epoch: found.epoch, step: found.step, tokens: found.tokens, seconds: found.seconds, series: found.series };
    if (isSame && found.after === after) {
      for (const column of ["step", "tokens", "seconds"]) fresh[column] = known[column].concat(found[column]);
      for (const name of names) fresh.series[name] = known.series[name].concat(found.series[name]);
    }
    this.data.set(key, fresh);
  }

  async pulse(pulses) {
    const gone = [...this.shown].filter((key) => pulses[key]?.gone);
    if (gone.length) { await this.forget(gone, pulses); return; }
    const moved = [...this.shown].filter((key) => {
      const [now, before] = [pulses[key], this.data.get(key)];
      return now && (!before || now.epoch !== before.epoch || now.lines !== before.step.length || now.problem !== before.problem);
    });
    for (const run of this.runs) if (pulses[run.key]) run.last_step = pulses[run.key].last_step;
    if (!moved.length) return;
    await Promise.all(moved.map((key) => this.loadRun(key)));
    this.showRuns();
    this.draw();
  }

  /** Runs that began since the page was opened join the list, and the panels where these show every run. */
  async look() {
    const runs = (await ask("runs")).runs.filter((run) => run.kind === "run");
    const known = new Set(this.runs.map((run) => run.key));
    const fresh = runs.filter((run) => !known.has(run.key));
    if (!fresh.length) return;
    const showsAll = this.runs.every((run) => this.shown.has(run.key));
    this.runs = runs;
    for (const run of fresh) if (showsAll && this.shown.size < SHOWN_AT_FIRST) this.shown.add(run.key);
    if (!this.list) { await this.open(); return; }
    this.showRuns();
    await this.load();
  }

  /** Runs that were deleted leave the list and the panels. */
  async forget(keys, pulses) {
    for (const key of keys) { this.shown.delete(key); this.data.delete(key); this.gone.push(pulses[key].gone); }
    this.runs = (await ask("runs")).runs.filter((run) => run.kind === "run");
    this.showRuns();
    this.draw();
  }

  watched() { return [...this.shown]; }

  color(key) {
    for (const run of this.runs) if (!this.hues.has(run.key)) this.hues.set(run.key, this.hues.size % HUES);
    return ink(`hue-${this.hues.get(key)}`);
  }

  setAxis(axis) { this.axis = axis; this.showAxes(); this.draw(); }

  nudge(by) {
    this.slider.value = this.weight + by;
    this.slider.dispatchEvent(new Event("input"));
  }

  showAxes() {
    fill(this.axes, AXES.map(([key, label]) => h("button", { type: "button", "aria-pressed": String(key === this.axis), onclick: () => this.setAxis(key) }, label)));
  }

  showRuns() {
    fill(this.list, this.runs.map((run) => {
      const box = h("input", { type: "checkbox", onchange: async () => {
        if (box.checked) this.shown.add(run.key); else this.shown.delete(run.key);
        if (box.checked && !this.data.has(run.key)) await this.loadRun(run.key);
        this.draw();
      } });
      box.checked = this.shown.has(run.key);
      const share = run.num_steps ? Math.min(1, (run.last_step || 0) / run.num_steps) : 0;
      const bar = h("span", { class: "progress" }, h("span", { class: "done" }));
      bar.firstChild.style.width = `${share * 100}%`;
      return h("li", {}, h("label", {}, box, swatch({ color: this.color(run.key), dash: 0 }), h("span", { class: "run-name" }, run.key)),
        h("div", { class: "run-facts" }, run.problem ? h("span", { class: "bad-text" }, run.problem) : [
          h("span", {}, [run.objective, run.env].filter(Boolean).join(" · ")), bar,
          h("span", {}, `${num(run.last_step ?? 0)}${run.num_steps ? ` of ${num(run.num_steps)}` : ""} steps`, run.is_live ? h("span", { class: "pulse" }, "training") : null)]));
    }));
  }

  /** The panels there are: one for each metric of the table, with a line for every run and role. */
  panels() {
    const panels = new Map();
    for (const key of this.shown) {
      for (const metric of this.data.get(key)?.metrics || []) {
        if (metric.name.startsWith("alarm/")) continue;
        if (!panels.has(metric.metric)) panels.set(metric.metric, { ...metric, names: new Set() });
        panels.get(metric.metric).names.add(metric.name);
      }
    }
    return panels;
  }

  draw() {
    const panels = this.panels();
    const kinds = new Set([...panels.keys()].map((metric) => metric.split("/")[0]));
    const groups = [["key", "Key"], ...GROUPS.filter((kind) => kinds.has(kind)).map((kind) => [kind, kind[0].toUpperCase() + kind.slice(1)]), ["all", "All"]];
    if (!groups.some(([key]) => key === this.group)) this.group = "key";
    fill(this.groups, groups.map(([key, label]) => h("button", { type: "button", "aria-pressed": String(key === this.group && !this.filter),
      onclick: () => { this.group = key; this.filter = this.search.value = ""; this.draw(); } }, label)));
    const chosen = this.choose(panels);
    for (const [metric, chart] of this.charts) if (!chosen.includes(metric)) { chart.close(); chart.element.remove(); this.charts.delete(metric); }
    this.grid.querySelector(".empty")?.remove();
    for (const metric of chosen) this.drawPanel(metric, panels.get(metric));
    if (!chosen.length) this.grid.append(h("p", { class: "empty" }, this.filter ? `No metric has “${this.filter}” in its name.` : this.shown.size ? "Nothing measured yet; the first step will appear here." : "Choose a run on the left."));
    this.showAlarms();
    rename("curves", { runs: [...this.shown].join("|"), x: this.axis === "step" ? "" : this.axis, group: this.group === "key" ? "" : this.group, metric: this.filter });
  }

  choose(panels) {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) return [...panels.keys()].filter((metric) => words.every((word) => [metric, ...panels.get(metric).names].some((name) => name.toLowerCase().includes(word))));
    if (this.group === "all") return [...panels.keys()];
    if (this.group === "key") return KEY_METRICS.filter((metric) => panels.has(metric));
    return [...panels.keys()].filter((metric) => metric.startsWith(this.group + "/"));
  }

  drawPanel(metric, panel) {
    if (!this.charts.has(metric)) {
      const chart = new Chart({ title: TITLES[metric] || metric, unit: panel.unit, meaning: panel.meaning });
      chart.redraw = () => this.drawPanel(metric, this.panels().get(metric));
      this.charts.set(metric, chart);
    }
    const chart = this.charts.get(metric);
    this.grid.append(chart.element);
    const several = this.shown.size > 1;
    const lines = [];
    for (const key of this.shown) {
      const data = this.data.get(key);
      if (!data) continue;
      [...panel.names].forEach((name, index) => {
        const values = data.series[name];
        if (!values || values.every((value) => value === null)) return;
        const end = panel.names.size > 1 || metric.includes("{") ? name.split("/").at(-1) : "";
        const label = several ? [key, end].filter(Boolean).join(" · ") : end || key;
        const color = several || panel.names.size === 1 ? this.color(key) : ink(`hue-${index % HUES}`);
        lines.push({ key, label, color, dash: several ? index : 0, x: data[this.axis], y: values });
      });
    }
    chart.draw(lines, { axis: this.axis, weight: metric.startsWith("eval/") ? 0 : this.weight, marks: this.marks() });
  }

  marks() {
    return [...this.shown].flatMap((key) => {
      const data = this.data.get(key);
      return (data?.alarms || []).map((alarm) => ({ x: data[this.axis][data.step.indexOf(alarm.first)], label: alarm.name }));
    });
  }

  showAlarms() {
    const found = [...this.shown].flatMap((key) => [
      ...(this.data.get(key)?.problem ? [h("span", { class: "alarm" }, h("b", {}, key), " ", this.data.get(key).problem)] : []),
      ...(this.data.get(key)?.alarms || []).map((alarm) =>
        h("a", { class: "alarm", href: `#/episodes?${new URLSearchParams({ run: key, q: `alarm:${alarm.name}` })}`, title: "Episodes of these steps" },
          h("span", { class: "flag", "aria-hidden": "true" }, "⚑"), h("b", {}, alarm.name.replaceAll("_", " ")),
          ` ${alarm.first === alarm.last ? `step ${alarm.first}` : `steps ${alarm.first}–${alarm.last}`}`, this.shown.size > 1 ? h("span", { class: "muted" }, ` · ${key}`) : null))]);
    const hidden = found.length - 8;
    fill(this.alarms, this.gone.map((text) => h("span", { class: "alarm" }, text)), found.length ? [h("span", { class: "muted" }, plural(found.length, "alarm")), found.slice(0, 8), hidden > 0 ? h("span", { class: "muted" }, `and ${hidden} more`) : null] : null);
  }

  theme() { this.showRuns(); this.draw(); }

  close() { for (const chart of this.charts.values()) chart.close(); }
}
