// An episode as a time line of events; members of one active set stand side by side.
import { textUrl } from "./api.js";
import { fill, h, num, plural, signed } from "./dom.js";
import { strip } from "./strip.js";

const TAG = /<\/?[A-Za-z][\w-]{0,40}>|\\boxed\b/g;
const LONG = 700;

/** A text with its tags set apart; what was cut can be fetched. */
export function words(excerpt, whole) {
  const box = h("div", { class: "words", dir: "auto" });
  let from = 0;
  for (const found of excerpt.text.matchAll(TAG)) {
    box.append(excerpt.text.slice(from, found.index), h("span", { class: "tag" }, found[0]));
    from = found.index + found[0].length;
  }
  box.append(excerpt.text.slice(from));
  if (!excerpt.text && !excerpt.num_omitted) box.append(h("span", { class: "muted" }, "nothing"));
  if (excerpt.num_omitted) {
    box.append(h("span", { class: "cut" }, ` … ${num(excerpt.num_omitted)} more characters`),
      whole ? h("a", { class: "cut-link", href: textUrl(whole), download: "text.txt" }, "whole text") : "");
  }
  if (excerpt.text.length <= LONG && excerpt.text.split("\n").length <= 14) return box;
  box.classList.add("folded");
  const more = h("button", { class: "more", type: "button", "aria-expanded": "false", onclick: () => {
    const folded = box.classList.toggle("folded");
    more.textContent = folded ? "Show all" : "Show less";
    more.setAttribute("aria-expanded", String(!folded));
  } }, "Show all");
  return h("div", {}, box, more);
}

export const chip = (label, value, kind = "", title = "") => h("span", { class: `chip ${kind}`, title }, label ? h("span", { class: "chip-label" }, label) : null, h("b", {}, value));

const tone = (value) => (value > 0 ? "good" : value < 0 ? "bad" : "");

export function outcome(timeline) {
  return timeline.is_correct ? chip("", "✓ right", "good") : chip("", timeline.ending === "truncated" ? "✗ truncated" : "✗ wrong", "bad");
}

export function head(timeline, links = null) {
  return h("header", { class: "episode-head" },
    h("div", { class: "chips" }, outcome(timeline), chip("reward", num(timeline.reward), ""), timeline.penalty ? chip("penalty", num(timeline.penalty), "warn") : null,
      chip("", plural(timeline.events.length, "event")), chip("", plural(timeline.num_tokens, "token")), chip("", plural(timeline.num_calls, "call")),
      timeline.num_tool_calls ? chip("", plural(timeline.num_tool_calls, "search").replace(/searchs$/, "tool calls").replace(/search$/, "tool call")) : null),
    h("div", { class: "question", role: "heading", "aria-level": "2" }, words(timeline.question)),
    h("dl", { class: "facts" },
      timeline.gold.text ? [h("dt", {}, "gold"), h("dd", {}, words(timeline.gold))] : null,
      timeline.outcome.filter(([name]) => name !== "correct").map(([name, value]) => [h("dt", {}, name), h("dd", {}, words(value))])),
    h("p", { class: "ids" }, h("span", { title: "episode" }, timeline.episode_id), h("span", { title: "task" }, timeline.task_id), h("span", { title: "environment" }, timeline.env_id), links),
    timeline.remark ? h("p", { class: "remark muted" }, timeline.remark) : null);
}

/** The events of a time line; `source` says where whole texts are fetched. */
export function events(timeline, source) {
  const list = h("ol", { class: "events" });
  if (timeline.setup_tool_calls.length) list.append(h("li", { class: "event" }, h("div", { class: "node", "aria-hidden": "true" }, "·"), h("div", { class: "event-body" }, h("h3", {}, "Before the first event"), tools(timeline.setup_tool_calls))));
  timeline.events.forEach((event, index) => list.append(eventItem(event, index, source)));
  return list;
}

export function eventItem(event, index, source, other = null) {
  const number = h("div", { class: "node", "aria-hidden": "true" }, String(index));
  const body = h("div", { class: "event-body" },
    h("div", { class: "event-head" },
      h("h3", {}, event.event_type, " ", h("span", { class: "k", title: "Cardinality: members of the active set" }, `K = ${event.cardinality}`)),
      h("span", { class: "muted" }, `turn ${event.turn} · ${event.state_label}`), h("span", { class: "grow" }), learned(event)),
    event.is_complete ? null : h("p", { class: "malformed" }, `incomplete: ${event.members.length} of ${event.cardinality} members answered`),
    prompts(event, index, source),
    fill(h("div", { class: `members ${event.members.length > 1 ? "several" : ""}`, role: "group", "aria-label": `Active set of ${event.members.length}` }),
      event.members.map((member, seat) => memberCard(member, index, source, other?.members[seat]))),
    tools(event.tool_calls, index, source));
  return h("li", { class: `event ${event.members.some((member) => member.malformed_reason) ? "has-malformed" : ""}`, tabindex: "-1", "aria-label": `Event ${index}, ${event.event_type}, K = ${event.cardinality}` }, number, body);
}

function learned(event) {
  const chips = [];
  if (event.reward) chips.push(chip("reward", signed(event.reward), tone(event.reward)));
  if (event.team_return !== null) chips.push(chip("R", num(event.team_return), "", "Team return from this event on"));
  if (event.credit?.left_out) chips.push(chip("not trained", event.credit.left_out, "warn"));
  else if (event.credit && event.credit.advantage !== null) chips.push(chip("Â", signed(event.credit.advantage), tone(event.credit.advantage), "Advantage of the event (eq. 6), computed from the step's log as training did"));
  if (event.ratio !== null) {
    chips.push(chip("ρ", num(event.ratio, 4), event.is_clipped ? "warn" : "", "Set ratio of the checkpoint to the behavior policy (eq. 4)"));
    if (event.is_clipped !== null) chips.push(event.is_clipped ? chip("", "clipped", "warn", "The clip holds the ratio: no gradient") : chip("", "not clipped", "quiet"));
  }
  return h("div", { class: "chips" }, chips);
}

function prompts(event, index, source) {
  return event.prompts.map((prompt, number) => {
    const first = event.members.findIndex((member) => member.agent === prompt.agents[0]);
    const readers = prompt.agents.length > 3 ? `${prompt.agents.length} members` : prompt.agents.join(", ");
    const detail = h("details", { class: "prompt" }, h("summary", {}, h("span", { class: "to" }, event.prompts.length > 1 || prompt.agents.length < event.members.length ? `prompt to ${readers}` : "prompt"),
      h("span", { class: "gist" }, gist(prompt.text.text))), words(prompt.text, source && { ...source, event: index, part: "prompt", number: Math.max(0, first) }));
    if (number === 0 && index === 0) detail.open = prompt.text.text.length < 500;
    return detail;
  });
}

const gist = (text) => text.replace(/\s+/g, " ").slice(0, 140);

function memberCard(member, index, source, other) {
  const compares = member.tokens.current.length > 0;
  const stats = [`${plural(member.num_tokens, "token")}`, member.policy && `${member.policy} v${member.policy_version}`, member.finish_reason !== "stop" && member.finish_reason].filter(Boolean).join(" · ");
  const heat = strip(member);
  return h("article", { class: `member ${member.malformed_reason ? "is-malformed" : ""}`, "aria-label": `${member.agent}, ${member.role}` },
    h("header", {}, h("span", { class: "agent" }, member.agent), member.agent.startsWith(member.role) ? null : h("span", { class: "muted" }, member.role), other && other.text.text === member.text.text ? h("span", { class: "badge same", title: "The other side says the same here" }, "same text") : null,
      h("span", { class: "grow" }), h("span", { class: "muted small" }, stats)),
    words(member.text, source && { ...source, event: index, part: "text", number: member.index }),
    member.malformed_reason ? h("p", { class: "malformed" }, h("b", {}, "malformed"), " ", member.malformed_reason)
      : h("p", { class: "parsed" }, h("span", { class: "muted" }, "read as"), words(member.parsed)),
    heat ? h("details", { class: "tokens", open: compares || null }, h("summary", {}, compares ? `checkpoint − behavior` : "log-probabilities",
      member.log_ratio !== null ? h("span", { class: "ell", title: "Member log-ratio (eq. 3)" }, `ℓ = ${signed(member.log_ratio)}`) : member.mean_logprob !== null ? h("span", { class: "ell" }, `mean ${num(member.mean_logprob)}`) : null,
      member.ratio !== null ? h("span", { class: "ell" }, `ratio ${num(member.ratio)}`) : null,
      member.advantage !== null ? h("span", { class: "ell" }, `Â ${signed(member.advantage)}`) : null,
      member.is_clipped ? h("span", { class: "ell warn-text" }, "clipped") : null), heat) : null);
}

function tools(calls, index, source) {
  return calls.map((call, number) => {
    const given = call.arguments.map(([name, value]) => h("span", { class: "argument" }, name ? h("span", { class: "muted" }, `${name} `) : null, h("q", {}, value.text.slice(0, 300))));
    const took = call.duration_s >= 0.001 ? h("span", { class: "muted small" }, `${num(call.duration_s * 1000)} ms`) : null;
    const summary = h("summary", {}, h("span", { class: `tool-name ${call.kind === "grade" ? "grade" : ""}` }, call.kind === "grade" ? "graded" : call.name), given, h("span", { class: "grow" }),
      call.passages.length ? h("span", { class: "muted small" }, plural(call.passages.length, "passage")) : call.kind === "grade" ? h("b", {}, call.result.text.slice(0, 40)) : null, took);
    const found = call.passages.length
      ? h("ol", { class: "passages" }, call.passages.map((passage) => h("li", {}, h("div", { class: "passage-title" }, passage.title || "untitled", passage.score !== null ? h("span", { class: "muted small" }, ` ${num(passage.score)}`) : null), words(passage.text))))
      : words(call.result, source && index !== undefined && { ...source, event: index, part: "call", number });
    const detail = h("details", { class: "tool" }, summary, found);
    detail.open = call.kind === "tool" && call.passages.length > 0 && call.passages.length <= 5;
    return detail;
  });
}
