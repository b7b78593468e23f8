// Keyboard shortcuts: each page names its own, and `?` tells them all.
import { fill, h } from "./dom.js";

const COMMON = [
  ["?", "this help"],
  ["g c / g e / g v", "go to curves, episodes, comparison"],
  ["/", "search or filter"],
  ["t", "light or dark"],
  ["Esc", "leave the field, close, go back"],
];

let own = {};
let told = [];
let examples = [];
let prefix = false;
const common = {};

/** Set the page's shortcuts: `{j: [action, "next episode"]}`, and what may be searched for: `[["role:x", "meaning"]]`. */
export function pageKeys(shortcuts, searches = []) {
  examples = searches;
  own = Object.fromEntries(Object.entries(shortcuts).map(([key, [action]]) => [key, action]));
  told = Object.entries(shortcuts).filter(([, [, text]]) => text).map(([key, [, text]]) => [key, text]);
}

export function commonKeys(shortcuts) { Object.assign(common, shortcuts); }

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest("input, textarea, select");
    if (event.key === "Escape" && field) { field.blur(); event.preventDefault(); return; }
    if (field && !(field.type === "range" || field.type === "checkbox") || document.querySelector("dialog[open]")) return;
    const key = prefix ? "g " + event.key : event.key;
    prefix = !prefix && event.key === "g";
    const action = own[key] || common[key];
    const isControl = event.target.closest("button, a, summary, input");
    if (!action || (isControl && (event.key === "Enter" || event.key === " "))) return;
    if (isControl && isControl.type === "range" && event.key.startsWith("Arrow")) return;
    event.preventDefault();
    action(event);
  });
}

export function showHelp() {
  const dialog = document.getElementById("help");
  const row = ([keys, text]) => h("tr", {}, h("th", { scope: "row" }, keys.split(" ").map((key) =>
    key === "/" && keys.length > 1 ? " / " : h("kbd", {}, NAMES[key] || key))), h("td", {}, text));
  fill(dialog,
    h("h2", { id: "help-title" }, "Keyboard"),
    told.length ? h("table", {}, h("caption", {}, "On this page"), h("tbody", {}, told.map(row))) : null,
    h("table", {}, h("caption", {}, "Everywhere"), h("tbody", {}, COMMON.map(row))),
    examples.length ? h("table", {}, h("caption", {}, "Search"), h("tbody", {}, examples.map(([text, meaning]) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, text)), h("td", {}, meaning))))) : null,
    h("button", { class: "primary", type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
