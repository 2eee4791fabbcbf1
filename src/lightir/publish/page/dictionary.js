/** A sorted dictionary in blocks. Its first level is read whole, and the blocks as words are looked up. */

import { Reader } from "./store.js";

const TEXT = new TextDecoder();
const BYTES = new TextEncoder();

export class Dictionary {
  #found = new Map();

  /**
   * @param {object} store files of the publication.
   * @param {string} name name of the dictionary's files.
   * @param {boolean} holdsTexts whether words stand for texts, which are in the blocks, instead of lists in another file.
   */
  static async open(store, name, holdsTexts = false) {
    const dictionary = new Dictionary();
    const reader = new Reader(await store.whole(`${name}-blocks`));
    dictionary.blocks = [];
    let [start, base] = [0, 0];
    while (!reader.done) {
      const first = reader.take(reader.number());
      const [bytes, held] = [reader.number(), reader.number()];
      dictionary.blocks.push({ first, start, end: start + bytes, base });
      start += bytes;
      base += held;
    }
    Object.assign(dictionary, { store, name, holdsTexts, read: new Map() });
    return dictionary;
  }

  /** Return a word's number, and its text or the place of its list; null without the word. */
  async find(word) {
    if (!this.#found.has(word)) this.#found.set(word, await this.#read(word));
    return this.#found.get(word);
  }

  async #read(word) {
    const wanted = BYTES.encode(word);
    const at = this.#blockOf(wanted);
    const [entries] = at < 0 ? [[]] : await this.#entries([at]);
    return entries.find(({ key }) => compare(key, wanted) === 0) ?? null;
  }

  /** Return all entries whose words begin with a text. */
  async beginning(text) {
    const wanted = BYTES.encode(text);
    const places = [];
    for (let at = Math.max(0, this.#blockOf(wanted)); at < this.blocks.length; at += 1) {
      if (compare(this.blocks[at].first.subarray(0, wanted.length), wanted) > 0) break;
      places.push(at);
    }
    const entries = (await this.#entries(places)).flat();
    return entries.filter(({ key }) => compare(key.subarray(0, wanted.length), wanted) === 0);
  }

  #blockOf(wanted) {
    let [low, high] = [0, this.blocks.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (compare(this.blocks[middle].first, wanted) <= 0) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Return the entries of blocks; adjacent ones are read together. */
  async #entries(places) {
    const lacking = places.filter((at) => !this.read.has(at));
    const read = await this.store.ranges(this.name, lacking.map((at) => [this.blocks[at].start, this.blocks[at].end]));
    lacking.forEach((at, i) => this.read.set(at, this.#entriesOf(read[i], this.blocks[at].base)));
    return places.map((at) => this.read.get(at));
  }

  #entriesOf(bytes, base) {
    const reader = new Reader(bytes);
    const entries = [];
    let key = new Uint8Array(0);
    let offset = base;
    while (!reader.done) {
      const shared = reader.number();
      const rest = reader.take(reader.number());
      const next = new Uint8Array(shared + rest.length);
      next.set(key.subarray(0, shared));
      next.set(rest, shared);
      key = next;
      const value = reader.number();
      const length = reader.number();
      const text = this.holdsTexts ? TEXT.decode(reader.take(length)) : "";
      entries.push({ key, word: TEXT.decode(key), value, offset, length, text });
      offset += length;
    }
    return entries;
  }
}

/** Compare two words by their bytes, which is the order of their code points. */
function compare(a, b) {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i += 1) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}
