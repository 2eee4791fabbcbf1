/** The page of a published index: the element, the search in the address, and the title. */

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
  document.title = query.trim() ? `${query} · Search` : "Search";
});

addEventListener("hashchange", () => {
  const query = fromAddress().get("q") ?? "";
  if (query !== search.query) search.query = query;
});

await import("../lightir-search.js");
