/** BM25 over the published posting lists, with the numbers of lightir/index/bm25.py. */

import { Dictionary } from "./dictionary.js";
import { numbers, Reader } from "./store.js";

const MAX_COMPLETIONS = 30;
const COMPLETION_FACTOR = 0.7;
const LEAST_BEGINNING = 3;

export class CountedWords {
  static async open(store) {
    const { bm25 } = store.manifest;
    const [dictionary, lengths] = await Promise.all([Dictionary.open(store, "terms"), store.whole("lengths")]);
    const words = Object.assign(new CountedWords(), { store, dictionary, n: store.manifest.documents, lists: new Map() });
    words.penalties = Float64Array.from(numbers(lengths), (length) => bm25.k1 * (1 - bm25.b + (bm25.b * length) / bm25.mean_length));
    return words;
  }

  async frequency(term) {
    return (await this.dictionary.find(term))?.value ?? 0;
  }

  idf(frequency) {
    return Math.log1p((this.n - frequency + 0.5) / (frequency + 0.5));
  }

  /**
   * Return a query's terms with their weights, count x idf, and the sum of the weights of all words, unknown ones included.
   *
   * @param {string[]} row terms of the query.
   * @param {object|null} completed words that complete the last one, see `completions`.
   */
  async query(row, completed) {
    const counts = new Map();
    for (const term of row) counts.set(term, (counts.get(term) ?? 0) + 1);
    const terms = await Promise.all([...counts.keys()].sort(byCodePoints).map(async (term) => ({ term, entry: await this.dictionary.find(term) })));
    const known = terms.filter(({ entry }) => entry !== null);
    const weights = new Map(known.map(({ term, entry }) => [term, { entry, weight: counts.get(term) * this.idf(entry.value) }]));
    let reach = 0;
    for (const { weight } of weights.values()) reach += Math.fround(weight);
    for (const { term, entry } of terms) if (entry === null) reach += counts.get(term) * this.idf(0);
    if (completed !== null) reach += this.#complete(weights, row, completed);
    return { weights: new Map([...weights].sort(([a], [b]) => byCodePoints(a, b))), reach };
  }

  /** Add words that complete the last one. They share the idf of the most frequent one; return what the reach gains. */
  #complete(weights, row, { entries, own }) {
    const shared = this.idf(Math.max(...entries.map((entry) => entry.value)));
    for (const entry of entries) {
      const before = weights.get(entry.word)?.weight ?? 0;
      weights.set(entry.word, { entry, weight: before + COMPLETION_FACTOR * shared });
    }
    return own.some((term) => row.includes(term)) ? 0 : COMPLETION_FACTOR * shared;
  }

  /**
   * Return the most frequent words that begin with the last word of a text; null if there are none.
   *
   * @param {string} last last word, in the form that its stem begins in.
   * @param {string[]} own its terms.
   */
  async completions(last, own) {
    const every = await this.dictionary.beginning(last);
    const longer = every.filter(({ word }) => word !== last);
    longer.sort((a, b) => b.value - a.value); // equal ones stay in the order of their code points
    let entries = longer.slice(0, MAX_COMPLETIONS).filter(({ word }) => !own.includes(word));
    if (!entries.length) {
      const known = await Promise.all([last, ...own].map((term) => this.frequency(term)));
      entries = known.some(Boolean) ? [] : await this.#begun(last);
    }
    return entries.length ? { entries, own } : null;
  }

  /** Return the longest term that a word begins with: the word may be in the middle of its ending. */
  async #begun(word) {
    const letters = Array.from(word);
    for (let n = letters.length - 1; n >= LEAST_BEGINNING; n -= 1) {
      const entry = await this.dictionary.find(letters.slice(0, n).join(""));
      if (entry !== null) return [entry];
    }
    return [];
  }

  /** Return the (n,) scores of all documents for a query, and the scores of its terms by document. */
  async scores({ weights }) {
    const terms = [...weights.values()];
    const lists = await this.#lists(terms.map(({ entry }) => entry));
    const scores = new Float64Array(this.n);
    terms.forEach(({ weight }, i) => {
      const factor = Math.fround(weight);
      const { documents, saturations } = lists[i];
      for (let j = 0; j < documents.length; j += 1) scores[documents[j]] += factor * saturations[j];
    });
    return new Float32Array(scores);
  }

  /** Return the query's terms that a document has, with their parts of its score, the largest first. */
  async termsOf({ weights }, document) {
    const terms = [...weights.entries()];
    const lists = await this.#lists(terms.map(([, { entry }]) => entry));
    const shared = terms.flatMap(([term, { weight }], i) => {
      const at = lists[i].documents.indexOf(document);
      return at < 0 ? [] : [{ term, word: "", weight, score: weight * lists[i].saturations[at] }];
    });
    return shared.sort((a, b) => b.score - a.score);
  }

  async #lists(entries) {
    const lacking = entries.filter(({ offset }) => !this.lists.has(offset));
    const read = await this.store.ranges("postings", lacking.map(({ offset, length }) => [offset, offset + length]));
    lacking.forEach(({ offset, value }, i) => this.lists.set(offset, this.#postings(read[i], value)));
    return entries.map(({ offset }) => this.lists.get(offset));
  }

  /**
   * Return the documents of a posting list with the saturated counts of the term: count / (count + penalty).
   *
   * The list has distances of documents, doubled, and one more where a count other than 1 follows.
   */
  #postings(bytes, n) {
    const reader = new Reader(bytes);
    const documents = new Uint32Array(n);
    const saturations = new Float32Array(n);
    let document = -1;
    for (let i = 0; i < n; i += 1) {
      const coded = reader.number();
      document += Math.floor(coded / 2) + 1;
      const count = coded % 2 ? reader.number() : 1;
      documents[i] = document;
      saturations[i] = count / (count + this.penalties[document]);
    }
    return { documents, saturations };
  }
}

/** Compare two texts in the order of their code points, as Python does. */
export function byCodePoints(a, b) {
  const [left, right] = [Array.from(a), Array.from(b)];
  for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
    const difference = left[i].codePointAt(0) - right[i].codePointAt(0);
    if (difference) return difference;
  }
  return left.length - right.length;
}
