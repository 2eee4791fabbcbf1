/** Search of the documentation site: a hit opens its page at the heading of its passage. */

import "../search/lightir-search.js";

/** Return the anchor of a heading, as the site makes it. */
function anchor(heading) {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}_\- ]/gu, "")
    .trim()
    .replace(/[ -]+/g, "-");
}

document.addEventListener("lightir-open", (event) => {
  event.preventDefault();
  const { doc_id: id, title } = event.detail;
  const page = id.split("#")[0].replace(/^pages\//, "").replace(/(^|\/)README\.md$/, "$1index.md").replace(/\.md$/, ".html");
  const headings = (title ?? "").split(" > ");
  const fragment = headings.length > 1 ? `#${anchor(headings.at(-1))}` : "";
  location.href = `../${page}${fragment}`;
});
