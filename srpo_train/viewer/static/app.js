// The application: one page at a time by the address, what is common to all, and the pulse of live runs.
import { address, ask, place } from "./api.js";
import { ComparePage } from "./compare.js";
import { CurvesPage } from "./curves.js";
import { fill, h, hideTip } from "./dom.js";
import { EpisodesPage } from "./episodes.js";
import { commonKeys, listen, pageKeys, showHelp } from "./keys.js";

const PAGES = { curves: ["Curves", CurvesPage], episodes: ["Episodes", EpisodesPage], compare: ["Compare", ComparePage] };
const PULSE_MS = 1500;
const LOOK_EVERY = 4; // pulses between two looks for runs that began meanwhile
const THEMES = { auto: ["◐", "Colours of the system"], light: ["☀", "Light"], dark: ["☾", "Dark"] };

const main = document.getElementById("main");
let page = null;
let opening = 0;
let beats = 0;

async function open() {
  const { page: name, values } = place();
  const [title, Page] = PAGES[name] || PAGES.curves;
  const turn = ++opening;
  hideTip();
  page?.close();
  page = null;
  pageKeys({});
  document.title = `${title} · SRPO`;
  fill(document.getElementById("nav"), Object.entries(PAGES).map(([key, [label]]) =>
    h("a", { href: key === "episodes" && values.run && key !== name ? address(key, { run: values.run }) : address(key), "aria-current": label === title ? "page" : undefined }, label)));
  try {
    const { runs } = await ask("runs");
    if (turn !== opening) return;
    if (!runs.length) throw new Error("There is no run here any more: what `srpo view` was started with was deleted or moved.");
    page = new Page({ main, runs, values });
    await page.open();
  } catch (error) {
    if (turn === opening) fill(main, h("div", { class: "empty" }, h("p", { class: "problem", role: "alert" }, error.message), h("button", { class: "button", type: "button", onclick: open }, "Try again")));
  }
}

async function beat() {
  if (page && !document.hidden) {
    const live = document.getElementById("live");
    const watched = page.watched();
    try {
      const pulses = watched.length ? await ask("pulse", { run: watched }) : null;
      live.textContent = "";
      if (pulses) await page?.pulse(pulses);
      if (++beats % LOOK_EVERY === 0) await page?.look?.();
    } catch (error) {
      live.textContent = error.message;
    }
  }
  setTimeout(beat, PULSE_MS);
}

function setTheme(theme) {
  if (theme === "auto") { delete document.documentElement.dataset.theme; localStorage.removeItem("srpo-theme"); }
  else { document.documentElement.dataset.theme = theme; localStorage.setItem("srpo-theme", theme); }
  showTheme();
  page?.theme();
}

const theme = () => document.documentElement.dataset.theme || "auto";

function showTheme() {
  const button = document.getElementById("theme");
  const [icon, label] = THEMES[theme()];
  button.textContent = icon;
  button.setAttribute("aria-label", `Colours: ${label.toLowerCase()}`);
  button.title = `${label} (t)`;
}

const isDark = () => theme() === "dark" || (theme() === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);

document.getElementById("theme").addEventListener("click", () => setTheme({ auto: "light", light: "dark", dark: "auto" }[theme()]));
document.getElementById("help-button").addEventListener("click", showHelp);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.theme());
addEventListener("hashchange", open);
commonKeys({
  "?": showHelp,
  t: () => setTheme(isDark() ? "light" : "dark"),
  "g c": () => { location.hash = "#/curves"; },
  "g e": () => { location.hash = "#/episodes"; },
  "g v": () => { location.hash = "#/compare"; },
});
listen();
showTheme();
await open();
beat();
