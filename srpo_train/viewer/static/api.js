// What the server tells. Every answer is JSON; what goes wrong is an Error with one clear sentence.

export async function ask(path, values = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    for (const item of [value].flat()) if (item !== undefined && item !== "") query.append(key, item);
  }
  let answer;
  try {
    answer = await fetch(`/api/${path}?${query}`, { signal, headers: { accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The viewer does not answer; is `srpo view` still running?");
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok || content.error) throw new Error(content.error || `The viewer answered with status ${answer.status}.`);
  return content;
}

export const textUrl = (values) => "/api/text?" + new URLSearchParams(values);

/** Where the address says we are: `#/episodes?run=a&q=b`. */
export function place() {
  const [page, query = ""] = location.hash.replace(/^#\//, "").split("?");
  return { page: page || "curves", values: Object.fromEntries(new URLSearchParams(query)) };
}

export function address(page, values = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) if (value !== undefined && value !== "" && value !== null) query.set(key, value);
  const text = query.toString();
  return `#/${page}${text && "?" + text}`;
}

/** Change the address without a new entry in the history, and without loading the page again. */
export const rename = (page, values) => history.replaceState(null, "", address(page, values));

export const remember = {
  get(key, otherwise) {
    try { return JSON.parse(localStorage.getItem("srpo-" + key)) ?? otherwise; } catch { return otherwise; }
  },
  set(key, value) { localStorage.setItem("srpo-" + key, JSON.stringify(value)); },
};
