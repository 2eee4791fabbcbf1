/** The service's page around the element: the search in the address, the title, and the choice of light or dark. */

const search = document.querySelector("lightir-search");

function fromAddress() {
  return new URLSearchParams(location.hash.slice(1));
}

const chosen = fromAddress();
for (const [name, attribute] of [["q", "query"], ["mode", "mode"], ["k", "k"]]) {
  if (chosen.has(name)) search.setAttribute(attribute, chosen.get(name));
}

search.addEventListener("lightir-change", ({ detail: { query, mode, k } }) => {
  const named = Object.entries({ q: query, mode, k }).filter(([, value]) => value);
  history.replaceState(null, "", `#${new URLSearchParams(named)}`);
  document.title = query.trim() ? `${query} · lightir` : "Search · lightir";
});

addEventListener("hashchange", () => {
  const query = fromAddress().get("q") ?? "";
  if (query !== search.query) search.query = query;
});

// A key that nothing else has taken goes to the element, so that its shortcuts work from anywhere on the page.
addEventListener("keydown", (event) => {
  const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
  if (event.target !== document.body) return;
  search.dispatchEvent(new KeyboardEvent("keydown", { key, ctrlKey, metaKey, altKey, shiftKey, cancelable: true }));
  if (key === "/") event.preventDefault();
});

const button = document.querySelector("#theme");
const system = matchMedia("(prefers-color-scheme: dark)");

function show(theme) {
  document.documentElement.dataset.theme = theme;
  search.setAttribute("theme", theme);
  button.textContent = theme === "dark" ? "Light" : "Dark";
}

function theme() {
  return localStorage.getItem("lightir-theme") ?? (system.matches ? "dark" : "light");
}

button.addEventListener("click", () => {
  localStorage.setItem("lightir-theme", theme() === "dark" ? "light" : "dark");
  show(theme());
});
system.addEventListener("change", () => show(theme()));
show(theme());

await import("./lightir-search.js");
