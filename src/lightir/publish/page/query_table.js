/** Dense query vectors without a model: sums of the rows of a query's terms, pairs and longer runs, read as queries need them. */

import { Reader } from "./store.js";
import { WordPiece } from "./wordpiece.js";

const LARGEST_SCORE = 6;
const MAX_KEPT = 4096; // rows of each kind
const POINTERS = 12; // bytes behind a row: number of the first run that continues it, place and length of their last terms

export class QueryTable {
  #terms = new Map(); // records that were read, by term id
  #pairs = new Map(); // by number

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
   * Return the vector of a query, of length 1, and a function that returns the part of each term; null for a query without
   * terms.
   *
   * @param {string} text text of the query.
   */
  async encode(text) {
    const ids = this.termIds(text);
    if (!ids.length) return null;
    const terms = await this.#records("table", this.#terms, ids);
    const rows = terms.map((row, i) => ({ ...row, names: [i] }));
    if (this.settings.pairs) rows.push(...(await this.#rowsOfRuns(ids, rows)));
    const weights = gateWeights(rows);
    const vector = new Float64Array(this.settings.dim);
    rows.forEach(({ values, scale }, i) => add(vector, values, weights[i] * scale));
    const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
    if (!length) return null;
    const factors = weights.map((weight) => weight / length);
    return { vector: vector.map((value) => value / length), parts: () => this.#parts(ids, rows, factors) };
  }

  /** Return the distinct terms of a query with their numbers of occurrences, and the sums of their parts of its vector. */
  #parts(ids, rows, factors) {
    const terms = new Map(ids.map((id) => [id, { term: this.vocabulary[id], count: 0, values: new Float64Array(this.settings.dim) }]));
    for (const id of ids) terms.get(id).count += 1;
    rows.forEach(({ values, scale, names }, i) => {
      for (const name of names) add(terms.get(ids[name]).values, values, (factors[i] * scale) / names.length);
    });
    return [...terms.values()];
  }

  /** Return the rows of the known pairs of adjacent terms, then those of runs of three, of four, and so on. */
  async #rowsOfRuns(ids, rows) {
    const all = [];
    for (let shorter = rows; shorter.length; ) {
      shorter = await this.#continued(ids, shorter);
      all.push(...shorter);
    }
    return all;
  }

  /** Return the rows of the runs that continue others by one term. */
  async #continued(ids, rows) {
    const begun = rows.filter(({ names, runs }) => runs.length && names.at(-1) + 1 < ids.length);
    const lacking = [...new Set(begun.map(({ runs }) => runs))].filter(({ lasts }) => !lasts);
    const lists = await this.store.ranges("seconds", lacking.map(({ start, length }) => [start, start + length]));
    lacking.forEach((runs, i) => (runs.lasts = ascending(lists[i])));
    const found = [];
    for (const { names, runs } of begun) {
      const next = names.at(-1) + 1;
      const place = runs.lasts.get(ids[next]);
      if (place !== undefined) found.push({ names: [...names, next], number: runs.first + place });
    }
    const records = await this.#records("pairs", this.#pairs, found.map(({ number }) => number));
    return found.map(({ names }, i) => ({ ...records[i], names }));
  }

  /** Return records of a file by number; those that were read are kept. */
  async #records(name, kept, numbers) {
    const width = this.#width() + (this.settings.pairs ? POINTERS : 0);
    const lacking = [...new Set(numbers)].filter((number) => !kept.has(number));
    const records = await this.store.ranges(name, lacking.map((number) => [number * width, (number + 1) * width]));
    if (kept.size > MAX_KEPT) kept.clear();
    const read = new Map(lacking.map((number, i) => [number, this.#row(records[i])]));
    const rows = numbers.map((number) => kept.get(number) ?? read.get(number));
    for (const [number, row] of read) kept.set(number, row);
    return rows;
  }

  #width() {
    const { dim, dtype, gate } = this.settings;
    return dim * BYTES[dtype] + (dtype === "int8" ? 4 : 0) + (gate ? 2 * gate.width * BYTES[gate.dtype] : 0);
  }

  /** Return a row's values, which are multiplied by the scale, its key and value of the gate, and where the runs that continue it are. */
  #row(record) {
    const { dim, dtype, gate, pairs } = this.settings;
    const view = new DataView(record.buffer, record.byteOffset, record.byteLength);
    const row = { values: floats(view, 0, dim, dtype), scale: 1 };
    let start = dim * BYTES[dtype];
    if (dtype === "int8") {
      row.scale = view.getFloat32(start, true);
      start += 4;
    }
    if (gate) {
      row.key = floats(view, start, gate.width, gate.dtype);
      row.value = floats(view, start + gate.width * BYTES[gate.dtype], gate.width, gate.dtype);
    }
    const end = this.#width();
    if (pairs) {
      const [first, place, length] = [0, 4, 8].map((at) => view.getUint32(end + at, true));
      row.runs = { first, start: place, length, lasts: null };
    }
    return row;
  }
}

function add(sums, values, factor) {
  for (let j = 0; j < sums.length; j += 1) sums[j] += factor * values[j];
}

const BYTES = { int8: 1, float16: 2, bfloat16: 2, float32: 4 };

function floats(view, start, n, dtype) {
  if (dtype === "int8") return new Int8Array(view.buffer, view.byteOffset + start, n);
  const values = new Float32Array(n); // which holds all of them exactly
  for (let j = 0; j < n; j += 1) {
    const at = start + j * BYTES[dtype];
    if (dtype === "float32") values[j] = view.getFloat32(at, true);
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

/** Return the place of each term of a list of ascending ones, which are stored as distances. */
function ascending(bytes) {
  const reader = new Reader(bytes);
  const places = new Map();
  for (let term = -1; !reader.done; ) {
    term += reader.number() + 1;
    places.set(term, places.size);
  }
  return places;
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
