// Before the first paint: the colours the reader chose, else those of the system.
const chosen = localStorage.getItem("srpo-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
