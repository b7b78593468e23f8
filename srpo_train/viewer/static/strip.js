// A response token by token: how likely the policy that sampled it found each, or what a checkpoint thinks instead.
import { fill, h, hideTip, num, showTip, signed } from "./dom.js";

const CAP = 1; // nats at which the colour is full
const LEVELS = 5;

/** Levels from -5 (the checkpoint finds the token less likely) to 5. */
export const level = (difference) => Math.max(-LEVELS, Math.min(LEVELS, Math.round((difference / CAP) * LEVELS) || Math.sign(difference) * (Math.abs(difference) > 0.02)));

/** Levels from 0 (sure) to 5 (a surprise of three nats or more). */
const surprise = (logprob) => Math.min(LEVELS, Math.round((-logprob / 3) * LEVELS));

export function strip(member) {
  const { texts, ids, behavior, current, is_sampled: sampled, num_omitted: omitted } = member.tokens;
  if (!behavior.length) return null;
  const compares = current.length > 0;
  const label = compares
    ? `Log-probability of each token under the checkpoint less that of the behavior policy, ${signed(member.log_ratio)} nats in all`
    : `Log-probability of each of ${behavior.length} tokens under the behavior policy`;
  const cells = behavior.map((logprob, index) => {
    const difference = compares ? current[index] - logprob : null;
    const kind = !sampled[index] ? "given" : compares ? `d${level(difference)}` : `s${surprise(logprob)}`;
    return h("span", { class: `tok ${kind}`, "data-i": index }, compares ? tokenText(texts[index]) : "");
  });
  const box = h("div", { class: `strip ${compares ? "texts" : "cells"}`, role: "img", "aria-label": label, tabindex: "0" }, cells,
    omitted ? h("span", { class: "muted" }, ` … ${num(omitted)} more tokens`) : null);
  let chosen = -1;
  const show = (index) => {
    box.querySelector(".tok.chosen")?.classList.remove("chosen");
    chosen = index;
    const cell = cells[index];
    if (!cell) { hideTip(); return; }
    cell.classList.add("chosen");
    showTip(cell, tokenTip(member, index));
  };
  box.addEventListener("pointerover", (event) => { const cell = event.target.closest(".tok"); if (cell) show(Number(cell.dataset.i)); });
  box.addEventListener("pointerleave", () => show(-1));
  box.addEventListener("blur", () => show(-1));
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    show(Math.max(0, Math.min(cells.length - 1, chosen + move)));
  });
  return box;
}

function tokenText(text) {
  return text === undefined ? "" : text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ | $/g, "·") || "∅";
}

function tokenTip(member, index) {
  const { texts, ids, behavior, current, is_sampled: sampled } = member.tokens;
  const rows = [["token", texts[index] === undefined ? `id ${ids[index]}` : `“${tokenText(texts[index])}”, id ${ids[index]}`]];
  if (!sampled[index]) rows.push(["", "text of the environment, not sampled"]);
  rows.push(["behavior", `${num(behavior[index], 4)} (p = ${num(Math.exp(behavior[index]), 3)})`]);
  if (current.length) rows.push(["checkpoint", `${num(current[index], 4)} (p = ${num(Math.exp(current[index]), 3)})`], ["difference", `${signed(current[index] - behavior[index], 3)} nats`]);
  return h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function legend(compares) {
  const cells = compares ? [-5, -3, -1, 1, 3, 5].map((i) => h("span", { class: `tok d${i}` })) : [0, 1, 2, 3, 4, 5].map((i) => h("span", { class: `tok s${i}` }));
  const ends = compares ? ["less likely now", "more likely"] : ["sure", "surprised"];
  return fill(h("span", { class: "legend strip cells" }), h("span", {}, ends[0]), cells, h("span", {}, ends[1]));
}
