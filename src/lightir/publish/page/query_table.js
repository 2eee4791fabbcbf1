/** Dense query vectors without a model: sums of the rows of a query's terms and pairs, read as queries need them. */

import { Reader } from "./store.js";
import { WordPiece } from "./wordpiece.js";

const LARGEST_SCORE = 6;
const POINTERS = 12; // bytes behind a term's row: number of its first pair, place and length of its pairs' second terms

export class QueryTable {
  static async open(store) {
    const { tokenizer } = store.manifest.query;
    const vocabulary = new TextDecoder().decode(await store.whole("vocabulary")).split("\n");
    const table = Object.assign(new QueryTable(), { store, settings: store.manifest.query, vocabulary });
    table.tokenizer = new WordPiece(vocabulary, tokenizer);
    return table;
  }

  /** Return the term ids of a query; none if it has unknown terms alone. */
  termIds(text) {
    const { lower_case, leading_blank, max_tokens, drop } = this.settings;
    let prepared = text.trim();
    if (lower_case) prepared = prepared.toLowerCase();
    if (leading_blank && prepared) prepared = ` ${prepared}`;
    const ids = this.tokenizer.encode(prepared).slice(0, max_tokens).filter((id) => !drop.includes(id));
    return ids.some((id) => id !== this.tokenizer.unknown) ? ids : [];
  }

  /**
   * Return the vector of a query, of length 1, and the part of each term; null for a query without terms.
   *
   * @param {string} text text of the query.
   */
  async encode(text) {
    const ids = this.termIds(text);
    if (!ids.length) return null;
    const terms = await this.#records("table", ids, this.#width() + (this.settings.pairs ? POINTERS : 0));
    const rows = terms.map((record, i) => ({ names: [i], ...this.#row(record) }));
    if (this.settings.pairs) rows.push(...(await this.#pairs(ids, terms)));
    const weights = gateWeights(rows);
    const vector = new Float64Array(this.settings.dim);
    const parts = ids.map(() => new Float64Array(this.settings.dim));
    rows.forEach(({ values, names }, i) => {
      for (let j = 0; j < vector.length; j += 1) {
        const value = weights[i] * values[j];
        vector[j] += value;
        for (const name of names) parts[name][j] += value / names.length;
      }
    });
    const length = Math.hypot(...vector);
    if (!length) return null;
    const scaled = (values) => values.map((value) => value / length);
    return { vector: scaled(vector), parts: this.#byTerm(ids, parts.map(scaled)) };
  }

  /** Return the distinct terms with their numbers of occurrences and the sums of their parts. */
  #byTerm(ids, parts) {
    const terms = new Map();
    ids.forEach((id, i) => {
      const known = terms.get(id);
      if (known) known.count += 1;
      else terms.set(id, { term: this.vocabulary[id], count: 1, values: new Float64Array(parts[i].length) });
      const { values } = terms.get(id);
      for (let j = 0; j < values.length; j += 1) values[j] += parts[i][j];
    });
    return [...terms.values()];
  }

  /** Return the rows of the known pairs of adjacent terms. */
  async #pairs(ids, terms) {
    const width = this.#width();
    const pointers = terms.map((record) => {
      const view = new DataView(record.buffer, record.byteOffset + width, POINTERS);
      return [view.getUint32(0, true), view.getUint32(4, true), view.getUint32(8, true)];
    });
    const firsts = ids.slice(0, -1).map((_, i) => i).filter((i) => pointers[i][2]);
    const lists = await this.store.ranges("seconds", firsts.map((i) => [pointers[i][1], pointers[i][1] + pointers[i][2]]));
    const found = [];
    firsts.forEach((i, at) => {
      const place = placeOf(lists[at], ids[i + 1]);
      if (place >= 0) found.push({ names: [i, i + 1], number: pointers[i][0] + place });
    });
    const records = await this.#records("pairs", found.map(({ number }) => number), width);
    return found.map(({ names }, i) => ({ names, ...this.#row(records[i]) }));
  }

  #records(name, numbers, bytes) {
    return this.store.ranges(name, numbers.map((number) => [number * bytes, (number + 1) * bytes]));
  }

  #width() {
    const { dim, dtype, gate } = this.settings;
    return dim * BYTES[dtype] + (dtype === "int8" ? 4 : 0) + (gate ? 2 * gate.width * BYTES[gate.dtype] : 0);
  }

  #row(record) {
    const { dim, dtype, gate } = this.settings;
    const view = new DataView(record.buffer, record.byteOffset, record.byteLength);
    const values = floats(view, 0, dim, dtype);
    let start = dim * BYTES[dtype];
    if (dtype === "int8") {
      const scale = view.getFloat32(start, true);
      for (let j = 0; j < dim; j += 1) values[j] *= scale;
      start += 4;
    }
    if (!gate) return { values };
    const key = floats(view, start, gate.width, gate.dtype);
    return { values, key, value: floats(view, start + gate.width * BYTES[gate.dtype], gate.width, gate.dtype) };
  }
}

const BYTES = { int8: 1, float16: 2, bfloat16: 2, float32: 4 };

function floats(view, start, n, dtype) {
  const values = new Float64Array(n);
  for (let j = 0; j < n; j += 1) {
    const at = start + j * BYTES[dtype];
    if (dtype === "int8") values[j] = view.getInt8(at);
    else if (dtype === "float32") values[j] = view.getFloat32(at, true);
    else values[j] = dtype === "float16" ? half(view.getUint16(at, true)) : upperHalf(view.getUint16(at, true));
  }
  return values;
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

const UPPER = new DataView(new ArrayBuffer(4));

function upperHalf(bits) {
  UPPER.setUint32(0, bits * 65536);
  return UPPER.getFloat32(0);
}

/** Return the place of a term in a list of ascending ones, which are stored as distances; -1 without it. */
function placeOf(bytes, id) {
  const reader = new Reader(bytes);
  let second = -1;
  for (let place = 0; !reader.done; place += 1) {
    second += reader.number() + 1;
    if (second >= id) return second === id ? place : -1;
  }
  return -1;
}

/** Return the weight of each row: exp(key . mean of all values), and 1 without a gate. */
function gateWeights(rows) {
  if (!rows[0].key) return rows.map(() => 1);
  const context = new Float64Array(rows[0].key.length);
  for (const { value } of rows) value.forEach((number, j) => (context[j] += number / rows.length));
  return rows.map(({ key }) => {
    const score = key.reduce((sum, number, j) => sum + number * context[j], 0);
    return Math.exp(Math.min(Math.max(score, -LARGEST_SCORE), LARGEST_SCORE));
  });
}
