// Two episodes side by side: of one task, of two checkpoints, of two runs; or one episode as two checkpoints see it.
import { address, ask, rename } from "./api.js";
import { fill, h, num, plural, signed } from "./dom.js";
import { pageKeys } from "./keys.js";
import { legend } from "./strip.js";
import { eventItem, head } from "./timeline.js";

const SIDES = ["left", "right"];

export class ComparePage {
  constructor({ main, runs, values }) {
    this.main = main;
    this.runs = runs;
    this.sides = Object.fromEntries(SIDES.map((side) => [side, read(values[side])]));
    this.answers = {};
  }

  async open() {
    pageKeys({ s: [() => this.swap(), "swap the sides"], n: [() => this.step(1), "next event"], p: [() => this.step(-1), "previous event"], Escape: [() => history.back()] });
    this.bar = h("div", { class: "compare-bar" });
    this.body = h("div", { class: "compare-body" });
    fill(this.main, h("div", { class: "compare" }, h("h1", { class: "visually-hidden" }, "Comparison"), this.bar, this.body));
    if (!this.sides.left) {
      fill(this.body, h("div", { class: "empty" }, h("h2", {}, "Compare two episodes"),
        h("p", {}, "Open an episode and press ", h("kbd", {}, "c"), ". Then choose another of the same task, from any run and any policy version, or see the same episode through two checkpoints."),
        h("p", {}, h("a", { class: "button", href: "#/episodes" }, "Browse episodes"))));
      return;
    }
    await this.load("left");
    if (this.sides.right) await this.load("right"); else await this.offer();
  }

  watched() { return []; }

  pulse() {}

  async load(side) {
    const chosen = this.sides[side];
    const problem = (error) => fill(this.body, h("div", { class: "empty" }, h("p", { class: "problem", role: "alert" }, error.message)));
    try {
      this.answers[side] = await ask("episode", { run: chosen.run, id: chosen.id, file: chosen.file });
      chosen.file = this.answers[side].file;
    } catch (error) { problem(error); return; }
    this.draw();
    if (this.answers[side].kind !== "run") return;
    try {
      this.note(side, chosen.checkpoint === "" ? "" : `scoring with step ${chosen.checkpoint} …`);
      const learned = await ask("episode", { run: chosen.run, id: chosen.id, file: chosen.file, credit: true, checkpoint: chosen.checkpoint });
      if (this.sides[side] !== chosen) return;
      this.answers[side] = learned;
      this.draw();
    } catch (error) { this.note(side, error.message); }
  }

  note(side, text) {
    const place = this.bar.querySelector(`[data-side=${side}] .note`);
    if (place) place.textContent = text;
  }

  keep() {
    rename("compare", Object.fromEntries(SIDES.filter((side) => this.sides[side]).map((side) => [side, write(this.sides[side])])));
  }

  swap() {
    if (!this.sides.right) return;
    [this.sides.left, this.sides.right] = [this.sides.right, this.sides.left];
    [this.answers.left, this.answers.right] = [this.answers.right, this.answers.left];
    this.draw();
  }

  /** Other episodes of the task, of every run, to choose the right side from. */
  async offer() {
    const task = this.answers.left?.timeline.task_id;
    if (!task) return;
    const box = fill(this.body, h("p", { class: "empty" }, "Looking for episodes of the same task …"));
    const found = [];
    for (const run of this.runs) {
      const page = await ask("episodes", { run: run.key, q: `task:"${task.replaceAll('"', "*")}"`, sort: "oldest", limit: 200 }).catch(() => null);
      if (page?.rows.length) found.push([run, page]);
    }
    const here = this.sides.left;
    const same = h("button", { class: "button", type: "button", onclick: () => this.choose({ ...here, checkpoint: "" }) }, "This same episode, through another checkpoint");
    fill(box, h("section", { class: "offer card" }, h("h2", {}, "Compare with"), this.answers.left.checkpoints.length ? same : null,
      found.map(([run, page]) => [h("h3", {}, run.key, h("span", { class: "muted" }, ` ${plural(page.total, "episode")} of this task`)),
        h("table", {}, h("thead", {}, h("tr", {}, ["Episode", "Step", "Version", "Reward", "Answer", "Events", "Tokens"].map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, page.rows.filter((row) => !(run.key === here.run && row.episode_id === here.id && row.file === here.file)).map((row) =>
            h("tr", {}, h("td", {}, h("button", { class: "link", type: "button", onclick: () => this.choose({ run: run.key, id: row.episode_id, file: row.file, checkpoint: "" }) }, row.episode_id)), h("td", {}, row.step ?? "–"), h("td", {}, row.version),
              h("td", {}, h("span", { class: row.correct ? "good-text" : "bad-text" }, row.correct ? "✓ " : "✗ "), num(row.reward)), h("td", {}, row.answer), h("td", {}, row.events), h("td", {}, num(row.tokens)))))) ])));
  }

  async choose(side) {
    this.sides.right = side;
    this.keep();
    await this.load("right");
  }

  draw() {
    this.keep();
    fill(this.bar, SIDES.map((side) => this.control(side)));
    if (!this.answers.left || !this.answers.right) { if (this.answers.left && !this.sides.right) return; if (!this.answers.right) return; }
    const [left, right] = SIDES.map((side) => this.answers[side].timeline);
    const rows = h("div", { class: "pairs" });
    rows.append(h("div", { class: "pair heads" }, SIDES.map((side) => h("div", {}, head(this.answers[side].timeline)))));
    for (let index = 0; index < Math.max(left.events.length, right.events.length); index += 1) {
      rows.append(h("div", { class: "pair" }, SIDES.map((side) => {
        const event = this.answers[side].timeline.events[index];
        const { run, id, file } = this.sides[side];
        return h("ol", { class: "events" }, event ? eventItem(event, index, { run, id, file }, (side === "left" ? right : left).events[index]) : h("li", { class: "over muted" }, "the episode is over"));
      })));
    }
    const scored = SIDES.some((side) => this.sides[side].checkpoint !== "");
    fill(this.body, h("div", { class: "compare-top" }, this.summary(left, right), scored ? legend(true) : null), rows);
  }

  summary(left, right) {
    const malformed = (timeline) => timeline.events.reduce((sum, event) => sum + event.members.filter((member) => member.malformed_reason).length, 0);
    const columns = [["reward", (timeline) => timeline.reward, 1], ["events", (timeline) => timeline.events.length, 0], ["tokens", (timeline) => timeline.num_tokens, 0],
      ["malformed", malformed, -1], ["tool calls", (timeline) => timeline.num_tool_calls, 0]];
    const row = (name, cell) => h("tr", {}, h("th", { scope: "row" }, name), columns.map(cell));
    const table = h("table", { class: "summary card" }, h("caption", { class: "visually-hidden" }, "Both in numbers"),
      h("thead", {}, h("tr", {}, h("td"), columns.map(([name]) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, row("left", ([, value]) => h("td", {}, num(value(left)))), row("right", ([, value]) => h("td", {}, num(value(right)))),
        row("right − left", ([, value, better]) => difference(value(right) - value(left), better))));
    return h("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": "Both in numbers" }, table);
  }

  control(side) {
    const chosen = this.sides[side];
    const answer = this.answers[side];
    if (!chosen || !answer) return h("div", { class: "control", "data-side": side }, h("span", { class: "side-name" }, side), h("span", { class: "muted" }, "choose below"));
    const select = h("select", { "aria-label": `Checkpoint on the ${side}`, onchange: () => { this.sides[side] = { ...chosen, checkpoint: select.value }; this.load(side); } },
      h("option", { value: "" }, "no checkpoint"), answer.checkpoints.map((item) => h("option", { value: item.step, selected: String(item.step) === String(chosen.checkpoint) }, `checkpoint of step ${item.step}`)));
    return h("div", { class: "control", "data-side": side }, h("span", { class: "side-name" }, side),
      h("a", { href: address("episodes", { run: chosen.run, id: chosen.id, file: chosen.file }) }, `${chosen.run} · ${chosen.id}`),
      answer.kind === "run" && answer.checkpoints.length ? select : null,
      side === "right" ? h("button", { class: "link", type: "button", onclick: () => { this.sides.right = null; delete this.answers.right; this.draw(); this.offer(); } }, "choose another") : h("button", { class: "link", type: "button", onclick: () => this.swap() }, "swap"),
      h("span", { class: "note muted", role: "status" }));
  }

  step(by) {
    const rows = [...this.body.querySelectorAll(".pair")];
    this.at = Math.max(0, Math.min(rows.length - 1, (this.at ?? -1) + by));
    rows[this.at]?.scrollIntoView({ block: "start" });
  }

  theme() {}

  close() {}
}

const difference = (value, better) => h("td", { class: value * better > 0 ? "good-text" : value * better < 0 ? "bad-text" : "muted" }, signed(value));

function read(text) {
  try {
    const [run, id, file = "", checkpoint = ""] = JSON.parse(text);
    return { run, id, file, checkpoint: String(checkpoint) };
  } catch { return null; }
}

const write = ({ run, id, file, checkpoint }) => JSON.stringify([run, id, file, checkpoint]);

