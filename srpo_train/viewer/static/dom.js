// Elements and numbers. Text only ever becomes a text node: nothing in this application makes markup of a string.

/** Make an element: `h("p", {class: "note", onclick: f}, "text", child)`. */
export function h(name, attributes = {}, ...children) {
  const svg = name === "svg" || name === "path" || name === "circle" || name === "line";
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** A number as short as it can be told: 0.7071, 12.3, 1,234, 5.6M. */
export function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value < 0) return "−" + num(-value, digits);
  const size = value;
  if (size >= 1e9) return (value / 1e9).toFixed(2) + "G";
  if (size >= 1e6) return (value / 1e6).toFixed(2) + "M";
  if (size >= 1e4) return Math.round(value).toLocaleString("en");
  if (Number.isInteger(value)) return value.toLocaleString("en");
  if (size >= 100) return value.toFixed(1);
  if (size >= 0.001) return String(Number(value.toPrecision(digits)));
  return value === 0 ? "0" : value.toExponential(1);
}

export function signed(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const text = num(Math.abs(value), digits);
  return value < 0 ? "−" + text : value > 0 ? "+" + text : "0";
}

export function seconds(value) {
  if (value < 90) return num(value, 3) + " s";
  if (value < 5400) return num(value / 60, 3) + " min";
  return num(value / 3600, 3) + " h";
}

export function bytes(value) {
  if (value >= 1e9) return num(value / 1e9) + " GB";
  if (value >= 1e6) return num(value / 1e6) + " MB";
  return num(value / 1e3) + " kB";
}

export const plural = (count, word) => `${num(count)} ${word}${count === 1 ? "" : "s"}`;

/** Call a function once things have been quiet for a while. */
export function debounce(action, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), wait);
  };
}

// --- one tooltip for the whole page ---------------------------------------------------------------------------------

const tip = () => document.getElementById("tip");

export function showTip(anchor, ...children) {
  const box = fill(tip(), ...children);
  box.hidden = false;
  const place = anchor.getBoundingClientRect();
  const left = Math.min(Math.max(8, place.left + place.width / 2 - box.offsetWidth / 2), innerWidth - box.offsetWidth - 8);
  const above = place.top - box.offsetHeight - 8;
  box.style.left = `${left}px`;
  box.style.top = `${above > 8 ? above : place.bottom + 8}px`;
}

export const hideTip = () => { tip().hidden = true; };
