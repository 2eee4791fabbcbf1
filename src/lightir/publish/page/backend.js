/** Search in a published index, in place of the service: the methods that <lightir-search> calls. */

import { Refused } from "../page/backend.js";
import { CountedWords } from "./counted_words.js";
import { Dictionary } from "./dictionary.js";
import { Fields } from "./fields.js";
import { best, ChangingBest, fused } from "./fusion.js";
import { QueryTable } from "./query_table.js";
import { Records } from "./records.js";
import { snippet } from "./snippets.js";
import { Store } from "./store.js";
import { Vectors } from "./vectors.js";
import { Analyzer } from "./words.js";

const DEVIATIONS = 5; // by which an estimated score may be too low for a document to be among the best
const REFINED_FIRST = 10; // documents beyond those asked for whose rows are read first
const MAX_REFINED = 48; // documents whose rows are read after that
const COMPLETED_MORE = 5; // documents beyond those asked for whose scores may be made exact
const SPARE = 150; // documents beyond the depth that are kept while scores are refined
const DEPTH = 200;
const MAX_PASSAGES = 20; // of one document that a ranking may hold for each document asked for
const FACET_VALUES = 10;
const LAST_WORD = /[\p{L}\p{Nl}\p{No}][\p{L}\p{N}_]*$/u;
const CAPITALS = /(?<![\p{L}\p{N}_])[A-Z]{2,}(?![\p{L}\p{N}_])/gu;

export class PublishedBackend {
  #parts = new Map();

  /** @param {URL|string} address address of the published folder. */
  constructor(address) {
    this.store = new Store(address);
  }

  /** Describe the index; nothing but the publication's description is read. */
  async info() {
    const { name, counts, branches, default_mode, model, version } = await this.#manifest();
    const fields = (await this.#fields()).types;
    return { index: name, ...counts, pending: 0, branches, default_mode, model, version, contract: null, fields, role: "read", read_only: true };
  }

  /**
   * Search.
   *
   * @param {object} body `query`, and optionally `mode`, `k`, `fusion`, `weights`, `filter` and `as_you_type`; as for the
   *     service. With `ids_only` the answer has no hits, but the number of matches, and counts of the values of `facets`.
   */
  async search(body) {
    const [began, waited] = [performance.now(), this.store.waited_ms];
    const { ids_only, k = 10 } = body;
    const records = await this.#records();
    if (ids_only) return this.#counted(body, records);
    const found = await this.#rank(body, records);
    const rows = records.firstOfDocuments(found.rows, k);
    const analyzer = await this.#analyzer();
    const wanted = new Set([...(await analyzer.words(body.query)).flatMap(([, terms]) => terms), ...(found.words?.completed ?? [])]);
    const hits = await Promise.all(rows.map((row) => this.#hit(row, found.branches(row.document), wanted, analyzer, records)));
    const round_trip_ms = performance.now() - began;
    return { hits, took_ms: Math.max(0, round_trip_ms - (this.store.waited_ms - waited)), round_trip_ms };
  }

  /** Explain a document's score by branch and by term. */
  async explain(body) {
    const records = await this.#records();
    const found = await this.#rank(body, records);
    const at = records.indexOf(found.rows, body.doc_id);
    if (at < 0) throw new Refused(404, `${body.doc_id} is not among the candidates`);
    const row = found.rows[at];
    const terms = {};
    if (found.words) terms.tokens = await this.#parts.get("words").then((words) => words.termsOf(found.words, row.document));
    if (found.vector) terms.dense = await this.#parts.get("vectors").then((vectors) => vectors.termsOf(found.vector, row.document));
    const shown = { score: row.score, rank: at + 1, n_candidates: found.rows.length, fusion: found.fusion };
    return { ...shown, branches: found.branches(row.document), terms };
  }

  /** Return a document with its whole text. */
  async document(docId) {
    const records = await this.#records();
    const document = await records.document(docId);
    if (!document) throw new Refused(404, `there is no document ${docId}`);
    return document;
  }

  /** Return the number of documents that match a search, and the counts of their fields' values. */
  async #counted({ facets = [], ...body }, records) {
    const { lists, rows } = await this.#rank(body, records, false);
    const matches = new Set(rows.map(({ document }) => document));
    lists?.find(({ name }) => name === "tokens")?.scores.forEach((score, document) => score > 0 && matches.add(document));
    const documents = records.firstOfDocuments([...matches].sort((a, b) => a - b).map((document) => ({ document })), Infinity);
    const numbers = documents.map(({ document }) => document);
    const fields = await this.#fields();
    const counted = await Promise.all(facets.map(async (name) => [name, await fields.facet(name, numbers, FACET_VALUES)]));
    return { hits: [], total: numbers.length, facets: Object.fromEntries(counted) };
  }

  #records() {
    return this.#part("records", async () => {
      await this.#manifest();
      return Records.open(this.store);
    });
  }

  #fields() {
    return this.#part("fields", async () => {
      await this.#manifest();
      return new Fields(this.store);
    });
  }

  #manifest() {
    return this.#part("manifest", () => this.store.open());
  }

  /** Return a part of the publication, which is read once; after a failure the next search reads it again. */
  #part(name, open) {
    if (!this.#parts.has(name)) {
      const opening = open();
      this.#parts.set(name, opening);
      opening.catch(() => this.#parts.delete(name));
    }
    return this.#parts.get(name);
  }

  /** Return the ranking of a query, with exact scores or as it is known without reading, and what it was computed from. */
  async #rank({ query, mode, k = 10, fusion, weights, filter, as_you_type }, records, isExact = true) {
    const manifest = await this.#manifest();
    const mask = filter ? await (await this.#fields()).mask(filter) : null;
    if (!query.trim()) return { rows: all(manifest.documents, mask), branches: () => ({}) };
    const branches = branchesOf(mode, manifest);
    const joined = fusionOf(fusion, weights, branches, manifest);
    const depth = Math.max(joined.depth, (manifest.has_passages ? MAX_PASSAGES : 1) * k);
    const [words, vector] = await Promise.all([
      branches.includes("tokens") ? this.#wordQuery(query, as_you_type) : null,
      branches.includes("dense") ? this.#part("table", () => QueryTable.open(this.store)).then((table) => table.encode(query)) : null,
      branches.includes("dense") ? this.#part("vectors", () => Vectors.open(this.store)) : null,
    ]);
    const lists = [];
    if (branches.includes("dense")) lists.push(await this.#denseBranch(vector?.vector, depth, mask));
    if (branches.includes("tokens")) {
      const scores = masked(await (await this.#parts.get("words")).scores(words), mask);
      lists.push({ name: "tokens", scores, list: best(scores, depth, 0), slack: () => 0, reach: words.reach });
    }
    const join = () => fused(lists.map((branch) => ({ ...branch, list: branch.list ?? branch.best.list() })), joined);
    const ranking = isExact ? await this.#refined(join, k, lists, records) : join();
    return { ...ranking, lists, words, vector, fusion: joined.name };
  }

  /** Return the dense branch with scores that are known without reading; a query without a vector finds nothing. */
  async #denseBranch(query, depth, mask) {
    const { documents } = await this.#manifest();
    if (!query) return { name: "dense", scores: new Float64Array(documents), list: [], slack: () => 0, reach: 1 };
    const vectors = await this.#parts.get("vectors");
    const scores = masked(vectors.scores(query), mask);
    if (!vectors.code) return { name: "dense", scores, list: best(scores, depth), slack: () => 0, reach: 1 };
    const [refined, completed] = [new Set(), new Set()];
    const slack = (document) => {
      if (completed.has(document)) return 0;
      return DEVIATIONS * (refined.has(document) ? vectors.rounding(document) : vectors.deviation(document));
    };
    const changing = new ChangingBest(scores, depth, SPARE);
    return { name: "dense", scores, best: changing, slack, reach: 1, vectors, refined, completed, query };
  }

  /** Return the ranking after the documents that may be among the k best have their exact dense scores. */
  async #refined(join, k, lists, records) {
    const dense = lists.find(({ refined }) => refined);
    let joined = join();
    if (!dense) return joined;
    const { vectors, refined, completed, scores, query } = dense;
    const least = () => {
      const shown = records.firstOfDocuments(joined.rows, k);
      return shown.length < k ? -Infinity : shown[k - 1].score;
    };
    const change = async (rows, read, known) => {
      const documents = rows.map(({ document }) => document);
      await vectors[read](query, documents, scores);
      for (const document of documents) known.add(document);
      dense.best.change(documents);
      joined = join();
    };
    for (const limit of [k + REFINED_FIRST, MAX_REFINED]) {
      const limited = least();
      const asked = joined.rows.filter(({ document, score, upper }) => !refined.has(document) && (upper > limited || score >= limited));
      await change(asked.sort((a, b) => b.upper - a.upper).slice(0, limit), "refine", refined);
    }
    for (;;) {
      const limited = least();
      const first = records.firstOfDocuments(joined.rows, k + COMPLETED_MORE);
      const asked = first.filter(({ document, upper }) => !completed.has(document) && upper >= limited);
      if (!asked.length) break;
      await change(asked, "complete", completed);
    }
    return joined;
  }

  /** Return the terms of a query with their weights. */
  async #wordQuery(query, asYouType) {
    const [analyzer, words] = await Promise.all([this.#analyzer(), this.#part("words", () => CountedWords.open(this.store))]);
    const inOrder = await analyzer.words(query);
    const row = inOrder.flatMap(([, terms]) => terms);
    const completed = asYouType ? await this.#completed(query, analyzer, words) : null;
    const asking = questionTerms(query, inOrder, analyzer.questionWords);
    const others = row.filter((term) => !asking.has(term));
    const counted = others.length || completed ? others : row;
    const weighted = await words.query(counted, completed);
    return { ...weighted, completed: (completed?.entries ?? []).map(({ word }) => word) };
  }

  async #completed(query, analyzer, words) {
    const last = query.match(LAST_WORD)?.[0];
    if (last === undefined) return null;
    const own = (await analyzer.words(last)).flatMap(([, terms]) => terms);
    return words.completions(analyzer.plain(last.toLowerCase()), own);
  }

  #analyzer() {
    return this.#part("analyzer", async () => {
      const { analyzer } = await this.#manifest();
      return new Analyzer(analyzer, analyzer.has_map ? await Dictionary.open(this.store, "words", true) : null);
    });
  }

  async #hit({ document, score }, branches, wanted, analyzer, records) {
    const stored = await records.record(document);
    const shown = snippet(stored, wanted, analyzer);
    const { text, isCut, cut, document_title, ...record } = stored;
    return { ...record, score, branches, pending: false, ...shown, terms: [] };
  }
}

/** Return all documents of a mask, or of the publication, in the order of their ids. */
function all(n, mask) {
  const rows = Array.from({ length: n }, (_, document) => ({ document, score: 0 }));
  return mask ? rows.filter(({ document }) => mask[document]) : rows;
}

/** Set the scores of documents that a mask excludes to NaN, which no list has. */
function masked(scores, mask) {
  mask?.forEach((matches, document) => matches || (scores[document] = NaN));
  return scores;
}

/** Return the branches that a mode searches. */
function branchesOf(mode, { branches, default_mode }) {
  const parts = (mode ?? default_mode).split("+");
  const lacking = parts.find((part) => part !== "hybrid" && !branches.includes(part));
  if (lacking) throw new Refused(422, `the published index has no ${lacking} branch; it has ${branches.join(", ")}`);
  return branches.filter((branch) => parts.includes("hybrid") || parts.includes(branch));
}

/** Return how branches are joined: by the index's fusion unless another one, or other weights, are asked for. */
function fusionOf(name, weights, branches, { fusions }) {
  if (branches.length === 1) return { name: "linear:none", depth: DEPTH };
  const chosen = fusions[name ?? ""];
  if (!chosen) throw new Refused(422, `the published index has no fusion ${name}; it has ${Object.keys(fusions).filter(Boolean).join(", ")}`);
  return weights ? { ...chosen, weights } : chosen;
}

/** Return the terms of a query that stand for question words alone; words in capitals count, such as WHO. */
function questionTerms(query, words, questionWords) {
  const inCapitals = new Set(query === query.toUpperCase() ? [] : (query.match(CAPITALS) ?? []).map((word) => word.toLowerCase()));
  const asks = (word) => questionWords.has(word) && !inCapitals.has(word);
  const others = new Set(words.filter(([word]) => !asks(word)).flatMap(([, terms]) => terms));
  return new Set(words.filter(([word]) => asks(word)).flatMap(([, terms]) => terms.filter((term) => !others.has(term))));
}
