// Checks of a page that a test runs in the browser: names of controls, contrast of text, headings, what lies outside.
() => {
  const problems = [];
  const isShown = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && element.getClientRects().length > 0;
  const described = (element) => `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") || ""}"> “${(element.textContent || "").trim().slice(0, 40)}”`;

  const nameOf = (element) => {
    const labelled = (element.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id)?.textContent || "").join(" ");
    const labels = element.labels ? [...element.labels].map((label) => label.textContent).join(" ") : "";
    return (element.getAttribute("aria-label") || labelled.trim() || labels || element.textContent || element.title || "").trim();
  };
  for (const element of document.querySelectorAll("button, a[href], input, select, textarea, summary, [role=img], [role=listbox], [tabindex='0']")) {
    if (isShown(element) && !nameOf(element)) problems.push(`no name: ${described(element)}`);
  }
  for (const image of document.querySelectorAll("img, svg")) {
    if (!image.closest("[aria-hidden=true]") && !image.getAttribute("aria-label") && !image.getAttribute("alt")) problems.push(`no text for ${described(image)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`id ${id} twice`);
  if (!document.documentElement.lang) problems.push("no language");
  if (!document.querySelector("main")) problems.push("no main");
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4, [role=heading]")) {
    if (!isShown(heading)) continue;
    const now = Number(heading.getAttribute("aria-level") || heading.tagName[1]);
    if (now > level + 1) problems.push(`heading jumps from ${level} to ${now}: ${described(heading)}`);
    level = now;
  }
  for (const box of document.querySelectorAll("main *")) {
    const scrolls = /auto|scroll/.test(getComputedStyle(box).overflow) && box.scrollHeight > box.clientHeight + 1;
    if (scrolls && isShown(box) && box.tabIndex < 0 && !box.matches("[tabindex]") && !box.querySelector("a[href], button, input, [tabindex]")) problems.push(`scrolls and takes no focus: ${described(box)}`);
  }
  for (const option of document.querySelectorAll("[role=option]")) if (!option.closest("[role=listbox]")) problems.push("an option outside a list");

  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (color) => {
    if (!known.has(color)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      known.set(color, [r, g, b, a / 255]);
    }
    return known.get(color);
  };
  const over = (top, below) => top.slice(0, 3).map((value, i) => value * top[3] + below[i] * (1 - top[3])).concat(1);
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let smallest = 99;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !isShown(element) || element.closest(".visually-hidden, .skip, option")) continue;
    const below = ground(element);
    const [a, b] = [light(over(rgba(getComputedStyle(element).color), below)), light(below)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    smallest = Math.min(smallest, contrast);
    if (contrast < 4.5) problems.push(`contrast ${contrast.toFixed(2)}: ${described(element)}`);
  }
  // Whatever scrolls to the side must do so within a box of its own: a table, the list of runs.
  for (const box of [document.documentElement, ...document.querySelectorAll("main, .detail")]) {
    if (box.scrollWidth > Math.min(box.clientWidth, innerWidth) + 1) problems.push(`${box.tagName.toLowerCase()} is ${box.scrollWidth} wide in a window of ${innerWidth}`);
  }
  return [...new Set(problems)];
}
