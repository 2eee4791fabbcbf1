/** Hits, their explanations, and the branches side by side. */

import { bar, h, marked, milliseconds, score, webAddress } from "./dom.js";

/** Names of the parts of a score, as a person reads them. */
export const NAMES = { dense: "Dense", sparse: "Sparse", tokens: "Lexical", rerank: "Re-ranked", hybrid: "Hybrid" };

const MAX_TERMS = 8;
const MAX_FIELDS = 4;

/**
 * Return the list of a search's hits.
 *
 * @param {object} answer answer of the service.
 * @param {object} actions `open(hit)`, `why(hit, place)` and `opened`, the set of ids whose explanations are open.
 */
export function ranking(answer, actions) {
  const best = Math.max(...answer.hits.map((hit) => total(hit)), 0);
  return h("ol", { class: "hits" }, answer.hits.map((hit, index) => item(hit, index, best, actions)));
}

function item(hit, index, best, actions) {
  const place = h("div", { class: "why", id: `why-${index}`, hidden: true });
  const why = h(
    "button",
    { type: "button", class: "why-button", "aria-expanded": "false", "aria-controls": place.id },
    "Why",
    h("span", { class: "hidden" }, ` is ${hit.title || hit.doc_id} number ${index + 1}`),
  );
  const toggle = (open) => {
    place.hidden = !open;
    why.setAttribute("aria-expanded", String(open));
    actions.opened[open ? "add" : "delete"](hit.doc_id);
    if (open) actions.why(hit, place);
  };
  why.addEventListener("click", () => toggle(place.hidden));
  if (actions.opened.has(hit.doc_id)) toggle(true);
  const explained = Object.keys(hit.branches).length > 0;
  return h(
    "li",
    { class: "hit", "data-id": hit.doc_id, part: "hit" },
    h("span", { class: "place", "aria-hidden": "true" }, String(index + 1)),
    h(
      "article",
      {},
      heading(hit, actions),
      h("p", { class: "snippet" }, marked(hit.snippet, hit.highlights)),
      h("p", { class: "facts" }, facts(hit)),
      explained && h("div", { class: "parts" }, stacked(hit, best), h("span", { class: "score" }, score(hit.score)), why),
      place,
    ),
  );
}

function heading(hit, actions) {
  const open = h("button", { type: "button", class: "title" }, hit.title || hit.doc_id);
  open.addEventListener("click", () => actions.open(hit));
  return h("h2", {}, open);
}

function facts(hit) {
  const { passage } = hit;
  const shown = [h("span", { class: "id" }, hit.doc_id)];
  if (passage?.heading && !hit.title.endsWith(passage.heading)) shown.push(h("span", {}, passage.heading));
  if (passage?.page) shown.push(h("span", {}, `page ${passage.page}`));
  else if (passage?.line) shown.push(h("span", {}, `line ${passage.line}`));
  if (hit.named) shown.push(h("span", { class: "note" }, "named by the query"));
  if (hit.pending) shown.push(h("span", { class: "note" }, "not encoded yet"));
  const fields = Object.entries(hit.metadata).filter(([, value]) => value !== null && value !== "" && !says(hit.doc_id, value));
  for (const [name, value] of fields.slice(0, MAX_FIELDS)) shown.push(field(name, value));
  return shown;
}

/** Return whether an id says a value already, as the path of a file says its folder and its type. */
function says(docId, value) {
  return typeof value === "string" && (docId.startsWith(`${value}/`) || docId.endsWith(`.${value}`));
}

/** Return a field of the metadata; an address of a web page becomes a link. */
export function field(name, value) {
  const address = webAddress(value);
  const text = typeof value !== "string" ? JSON.stringify(value) : /^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(value) ? value.slice(0, 10) : value;
  const shown = address ? h("a", { href: address, rel: "noopener noreferrer", target: "_blank" }, text) : text;
  return h("span", { class: "field" }, h("span", { class: "name" }, `${name} `), shown);
}

/** Return a branch's part of a fused score, at least 0 for a bar. */
function part(branch) {
  return branch.normalized === null || branch.normalized === undefined ? 0 : branch.weight * branch.normalized;
}

function total(hit) {
  return Object.values(hit.branches).reduce((sum, branch) => sum + Math.max(0, part(branch)), 0);
}

function stacked(hit, best) {
  const drawn = h("span", { class: "stack", "aria-hidden": "true" });
  for (const [name, branch] of Object.entries(hit.branches)) {
    const piece = h("span", { class: "piece", "data-branch": name });
    piece.style.width = best > 0 ? `${(Math.max(0, part(branch)) / best) * 100}%` : "0";
    drawn.append(piece);
  }
  return drawn;
}

/**
 * Return an explanation: each branch's part as a bar, and its terms with their weights.
 *
 * @param {object} explained answer of the service.
 * @param {object[]} words terms of the hit, which tell the query's word of a stem.
 */
export function explanation(explained, words) {
  const branches = Object.entries(explained.branches);
  const largest = Math.max(...branches.map(([, branch]) => Math.abs(part(branch))), 0);
  const wordOf = new Map(words.filter((term) => term.word).map((term) => [term.term, term.word]));
  const rank = explained.rank === null ? "not ranked" : `number ${explained.rank} of ${explained.n_candidates} candidates`;
  return [
    h("p", { class: "sum" }, `Score ${score(explained.score)}, ${rank}, fused by ${explained.fusion}`),
    h(
      "div",
      { class: "branches" },
      branches.map(([name, branch]) => [
        h(
          "section",
          { class: "branch", "data-branch": name },
          h("h3", {}, NAMES[name] ?? name),
          bar(largest ? Math.abs(part(branch)) / largest : 0, name, part(branch) < 0),
          h("p", { class: "product" }, product(branch)),
          terms(explained.terms[name] ?? [], name, wordOf),
        ),
      ]),
    ),
  ];
}

function product(branch) {
  if (branch.score === null) return "no vectors yet";
  const place = branch.rank === null ? "not among its candidates" : `number ${branch.rank}`;
  const raw = `${score(branch.score)} raw, ${place}`;
  if (branch.normalized === null || branch.normalized === undefined) return raw;
  return `${Number(branch.weight.toPrecision(4))} × ${score(branch.normalized)} = ${score(part(branch))} (${raw})`;
}

function terms(found, name, wordOf) {
  if (!found.length) return h("p", { class: "quiet" }, "no terms in common");
  const sorted = [...found].sort((a, b) => Math.abs(b.score) - Math.abs(a.score));
  const largest = Math.abs(sorted[0].score) || 1;
  const rows = sorted.slice(0, MAX_TERMS).map((term) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, wordOf.get(term.term) ?? (term.word || term.term.trim() || "␣")),
      h("td", { class: "number" }, score(term.weight, 3)),
      h("td", {}, bar(Math.abs(term.score) / largest, name, term.score < 0)),
      h("td", { class: "number" }, score(term.score, 3)),
    ),
  );
  const head = ["term", "weight", "", "part"].map((text) => (text ? h("th", { scope: "col" }, text) : h("td")));
  const more = found.length - rows.length;
  return [
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
    more > 0 && h("p", { class: "quiet" }, `and ${more} more`),
  ];
}

/**
 * Return the branches side by side. A document that is pointed at or focused is marked in every column.
 *
 * @param {Array<[string, object]>} columns modes and their answers.
 * @param {object} actions `open(hit)`.
 */
export function comparison(columns, actions) {
  const places = new Map(columns.map(([mode, answer]) => [mode, new Map(answer.hits.map((hit, i) => [hit.doc_id, i + 1]))]));
  const [first] = columns[0];
  const drawn = h("div", { class: "columns" });
  for (const [mode, answer] of columns) {
    const rows = answer.hits.map((hit, index) => compared(hit, index, mode === first ? null : places.get(first), actions));
    drawn.append(
      h(
        "section",
        { class: "column", "data-branch": mode },
        h("h2", {}, NAMES[mode] ?? mode, h("span", { class: "took" }, milliseconds(answer.took_ms))),
        rows.length ? h("ol", {}, rows) : h("p", { class: "quiet" }, "nothing found"),
      ),
    );
  }
  const mark = (event) => {
    const id = event.target.closest?.("[data-id]")?.dataset.id;
    for (const row of drawn.querySelectorAll("[data-id]")) row.classList.toggle("same", row.dataset.id === id);
  };
  drawn.addEventListener("pointerover", mark);
  drawn.addEventListener("focusin", mark);
  return drawn;
}

function compared(hit, index, fused, actions) {
  const open = h("button", { type: "button", class: "title" }, hit.title || hit.doc_id);
  open.addEventListener("click", () => actions.open(hit));
  const there = fused?.get(hit.doc_id);
  const note = fused && (there ? `hybrid ${there}` : "not in hybrid");
  return h(
    "li",
    { "data-id": hit.doc_id },
    h("span", { class: "place", "aria-hidden": "true" }, String(index + 1)),
    h("div", {}, open, h("p", { class: "facts" }, score(hit.score), note && h("span", {}, note))),
  );
}
