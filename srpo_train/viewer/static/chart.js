// One panel of curves: uPlot below, our colours, readout, alarms and keyboard around it.
import { fill, h, num, seconds } from "./dom.js";

/* global uPlot */

const HEIGHT = 190;
const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(13).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];

/** A colour of the style sheet as the canvas takes it, in today's theme. */
export function ink(name) {
  const probe = h("span", { class: "probe" });
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/** Running mean over exponentially many past values, without the bias of its start; gaps stay gaps. */
export function smooth(values, weight) {
  let mean = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

const AXES = {
  step: { label: "step", show: (value) => num(value) },
  tokens: { label: "sampled tokens", show: (value) => num(value) },
  seconds: { label: "time", show: seconds },
};

/**
 * A panel. `lines` are `{key, label, color, dash, x, y}`; `marks` are `{x, label, color}`.
 */
export class Chart {
  constructor({ title, unit, meaning }) {
    this.canvas = h("div", { class: "plot", tabindex: "0", role: "img" });
    this.readout = h("div", { class: "readout", role: "group", "aria-label": `Values of ${title}`, tabindex: "0" });
    this.note = h("span", { class: "chart-note" });
    this.size = h("button", { class: "icon small", type: "button", "aria-label": `Enlarge ${title}`, title: "Enlarge", onclick: () => this.enlarge() }, "⤢");
    this.element = h("figure", { class: "chart card", "data-metric": title },
      h("figcaption", {}, h("h2", {}, title), unit && unit !== "-" ? h("span", { class: "unit" }, unit) : null, h("span", { class: "grow" }), this.note, this.size),
      h("p", { class: "meaning" }, meaning || ""),
      this.canvas, this.readout);
    this.title = title;
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.leave());
    this.resizer = new ResizeObserver(() => this.fit());
    this.resizer.observe(this.canvas);
  }

  /** Draw; returns whether there is anything to see. */
  draw(lines, { axis, weight, marks }) {
    this.lines = lines;
    this.axis = axis;
    this.marks = marks;
    const at = this.plot ? this.plot.cursor.idx : null;
    this.plot?.destroy();
    this.plot = null;
    if (!lines.length || !this.canvas.clientWidth) return;
    const joined = uPlot.join(lines.map((line) => [line.x, line.y, smooth(line.y, weight)]));
    const few = joined[0].length <= 40;
    const style = { faint: ink("chart-grid"), text: ink("muted"), card: ink("card") };
    const curves = lines.flatMap((line) => {
      const common = { stroke: line.color, dash: DASHES[line.dash % DASHES.length], spanGaps: true, points: { show: few && lines.length < 4, size: 5, fill: style.card, width: 1.5 } };
      const raw = { ...common, width: 1, alpha: weight ? 0.25 : 0, points: { show: false } };
      return [raw, { ...common, width: 2 }];
    });
    const ticks = { stroke: style.text, font: "11px system-ui, sans-serif", grid: { stroke: style.faint, width: 1 }, ticks: { show: false } };
    this.plot = new uPlot({
      width: this.canvas.clientWidth,
      height: this.height,
      padding: [10, 14, 0, 0],
      cursor: { sync: { key: "curves" }, y: false, points: { size: 7 }, drag: { x: true, y: false } },
      legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => span(low, high) } },
      axes: [
        { ...ticks, size: 30, ...(axis === "seconds" ? {} : { incrs: WHOLE }), values: (_, values) => values.map((value) => (axis === "seconds" ? seconds(value) : num(value))) },
        { ...ticks, size: 52, values: (_, values) => values.map((value) => num(value)) },
      ],
      series: [{}, ...curves],
      hooks: { setCursor: [() => this.tell()], draw: [(plot) => this.drawMarks(plot)] },
    }, joined, this.canvas);
    this.plot.root.setAttribute("aria-hidden", "true");
    if (at !== null && at !== undefined) this.show(Math.min(at, joined[0].length - 1));
    this.tell();
  }

  get height() { return this.element.classList.contains("large") ? 380 : HEIGHT; }

  fit() {
    if (this.plot && Math.abs(this.plot.width - this.canvas.clientWidth) > 1) this.plot.setSize({ width: this.canvas.clientWidth, height: this.height });
    else if (!this.plot && this.lines) this.redraw?.();
  }

  enlarge() {
    const large = this.element.classList.toggle("large");
    this.size.textContent = large ? "⤡" : "⤢";
    this.size.setAttribute("aria-label", `${large ? "Reduce" : "Enlarge"} ${this.title}`);
    this.plot?.setSize({ width: this.canvas.clientWidth, height: this.height });
    this.element.scrollIntoView({ block: "nearest" });
  }

  /** Values at the cursor, or the newest ones. */
  tell() {
    const at = this.plot?.cursor.idx;
    const has = at !== null && at !== undefined;
    const x = has ? this.plot.data[0][at] : null;
    const cells = this.lines.map((line, index) => {
      const raw = this.plot.data[1 + 2 * index];
      const value = has ? nearest(raw, at) : last(raw);
      return h("span", { class: "value" }, swatch(line), h("span", { class: "who" }, line.label), h("b", {}, num(value, 4)));
    });
    fill(this.readout, cells);
    this.note.textContent = has ? `${AXES[this.axis].label} ${AXES[this.axis].show(x)}` : "";
    this.canvas.setAttribute("aria-label", `${this.title} by ${AXES[this.axis].label}${has ? ` at ${num(x)}` : ", newest"}: ` +
      this.lines.map((line, index) => `${line.label} ${num(has ? nearest(this.plot.data[1 + 2 * index], at) : last(this.plot.data[1 + 2 * index]), 4)}`).join("; "));
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const mark of this.marks) {
      const x = Math.round(plot.valToPos(mark.x, "x", true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = ink("bad");
      ctx.setLineDash([4, 3]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x + 9 * devicePixelRatio, bbox.top + 4 * devicePixelRatio);
      ctx.lineTo(x, bbox.top + 8 * devicePixelRatio);
      ctx.fill();
    }
    ctx.restore();
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || !this.plot) return;
    event.preventDefault();
    event.stopPropagation();
    const end = this.plot.data[0].length - 1;
    const from = this.plot.cursor.idx ?? end + 1;
    this.show(Math.min(end, Math.max(0, from + moves[event.key])));
  }

  show(index) {
    const left = this.plot.valToPos(this.plot.data[0][index], "x");
    this.plot.setCursor({ left, top: 10 });
  }

  leave() { this.plot?.setCursor({ left: -10, top: -10 }); }

  close() {
    this.resizer.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}

export function swatch(line) {
  const line_ = h("line", { x1: 1, y1: 5, x2: 17, y2: 5, "stroke-width": 3, "stroke-dasharray": DASHES[(line.dash || 0) % DASHES.length].join(" ") || undefined, stroke: line.color });
  return h("svg", { class: "swatch", width: 18, height: 10, "aria-hidden": "true" }, line_);
}

function span(low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [-0.5, 0.5] : [low - Math.abs(low) * 0.2, high + Math.abs(high) * 0.2];
  const room = (high - low) * 0.06;
  return [low >= 0 && low < (high - low) * 0.35 ? 0 : low - room, high + room];
}

function last(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

/** The value at a place, or the last one before it: evaluations are rarer than steps. */
function nearest(values, at) {
  for (let i = at; i >= 0; i -= 1) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

