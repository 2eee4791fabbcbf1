/** Filters by metadata fields, and counts of their values, as lightir/index/metadata_filters.py and listing.py define them. */

import { Refused } from "../page/backend.js";
import { byCodePoints } from "./counted_words.js";
import { Reader } from "./store.js";

const TEXT = new TextDecoder();
const MAX_DEPTH = 8;
const DATE = /^(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?(Z|[+-]\d{2}:?\d{2})?)?$/;
const MINUTE = 60_000_000n; // microseconds
const DAY = 1440n * MINUTE;
const RANGES = {
  gt: (order) => order > 0,
  gte: (order) => order >= 0,
  lt: (order) => order < 0,
  lte: (order) => order <= 0,
};

/** The fields of a publication; the values of a field are read when it is first used. */
export class Fields {
  #columns = new Map();

  constructor(store) {
    this.store = store;
    this.known = store.manifest.fields;
  }

  /** Return the types of the fields that a page shows, as the service names them. */
  get types() {
    return Object.fromEntries(Object.entries(this.known).flatMap(([name, { type, is_facet }]) => (is_facet ? [[name, type]] : [])));
  }

  /** Return the mask of the documents that match a filter: 1 and 0 by number. */
  async mask(filter) {
    return this.#all(filter, "its top", 0);
  }

  /**
   * Return the values of a field that most documents have, with the numbers of these; ties go to the smaller value.
   *
   * @param {string} name field.
   * @param {number[]} documents documents to count.
   * @param {number} n maximum number of values.
   */
  async facet(name, documents, n) {
    const { values, starts, ranks } = await this.#column(name);
    const counts = new Uint32Array(values.length);
    for (const document of documents) for (let at = starts[document]; at < starts[document + 1]; at += 1) counts[ranks[at]] += 1;
    const found = Array.from(values, (value, rank) => ({ value, count: counts[rank] })).filter(({ count }) => count);
    return found.sort((a, b) => b.count - a.count).slice(0, n); // equal ones stay in the order of the values
  }

  async #all(filter, position, depth) {
    if (filter === null || typeof filter !== "object" || Array.isArray(filter)) throw malformed(position, "expected an object");
    if (depth > MAX_DEPTH) throw malformed(position, `nested deeper than ${MAX_DEPTH}`);
    const masks = await Promise.all(Object.entries(filter).map(([key, value]) => this.#entry(key, value, depth)));
    return joined(masks, this.store.manifest.documents, true);
  }

  async #entry(key, value, depth) {
    if (key === "not") return (await this.#all(value, key, depth + 1)).map((matches) => 1 - matches);
    if (key !== "and" && key !== "or") return this.#test(key, value);
    if (!Array.isArray(value)) throw malformed(key, "expected a list of filters");
    const masks = await Promise.all(value.map((part, i) => this.#all(part, `${key}[${i}]`, depth + 1)));
    return joined(masks, this.store.manifest.documents, key === "and");
  }

  async #test(name, wanted) {
    const column = await this.#column(name);
    if (wanted === null || typeof wanted !== "object") return among(column, [wanted], name);
    const tests = Object.entries(wanted);
    if (Array.isArray(wanted) || !tests.length) throw malformed(name, "expected a value or a test; for one of several use `in`");
    return joined(tests.map(([test, value]) => tested(column, test, value, `${name}.${test}`)), column.exists.length, true);
  }

  async #column(name) {
    if (!Object.hasOwn(this.known, name)) {
      const fields = Object.keys(this.known).join(", ") || "none";
      throw new Refused(422, `the published index has no values of the field ${name}; the fields with values: ${fields}`);
    }
    if (!this.#columns.has(name)) {
      const reading = this.#read(this.known[name]);
      this.#columns.set(name, reading);
      reading.catch(() => this.#columns.delete(name));
    }
    return this.#columns.get(name);
  }

  async #read({ file, type }) {
    const reader = new Reader(await this.store.whole(file));
    const { values, times } = JSON.parse(TEXT.decode(reader.take(reader.number())));
    const n = this.store.manifest.documents;
    const column = { type, values, ranks: [], starts: new Uint32Array(n + 1), exists: new Uint8Array(n), isNull: new Uint8Array(n) };
    column.times = times?.map((time) => (time === null ? null : BigInt(time)));
    for (let document = 0; document < n; document += 1) {
      const head = reader.number();
      column.exists[document] = head % 2;
      column.isNull[document] = Math.floor(head / 2) % 2;
      let rank = 0;
      for (let left = Math.floor(head / 4); left; left -= 1) column.ranks.push((rank += reader.number()));
      column.starts[document + 1] = column.ranks.length;
    }
    return column;
  }
}

function joined(masks, n, isAnd) {
  const mask = new Uint8Array(n).fill(Number(isAnd));
  for (const other of masks) for (let i = 0; i < n; i += 1) mask[i] = isAnd ? mask[i] & other[i] : mask[i] | other[i];
  return mask;
}

function tested(column, test, wanted, position) {
  if (test === "in") {
    if (!Array.isArray(wanted)) throw malformed(position, "expected a list of values");
    return among(column, wanted, position);
  }
  if (test === "exists") {
    if (typeof wanted !== "boolean") throw malformed(position, "expected true or false");
    return column.exists.map((exists) => Number(Boolean(exists) === wanted));
  }
  if (!Object.hasOwn(RANGES, test)) throw malformed(position, `unknown test; expected one of ${Object.keys(RANGES).join(", ")}, in, exists`);
  if (column.type === "boolean") throw malformed(position, "a boolean field has no order; compare it with true or false");
  const compare = comparison(column, ofType(wanted, column.type, position), test);
  return having(column, column.values.map((_, rank) => compare(rank)));
}

/** Return the mask of the documents with one of some values. */
function among(column, wanted, position) {
  const passes = column.values.map(() => false);
  for (const value of wanted.filter((one) => one !== null)) {
    const typed = ofType(value, column.type, position);
    column.values.forEach((known, rank) => {
      const time = column.times?.[rank] ?? null;
      if (column.type === "date" ? time !== null && typed.start <= time && time < typed.end : known === typed) passes[rank] = true;
    });
  }
  const mask = having(column, passes);
  return wanted.includes(null) ? joined([mask, column.isNull], mask.length, false) : mask;
}

/** Return a function of a value's rank that compares it with another value. */
function comparison({ type, values, times }, wanted, test) {
  const holds = RANGES[test];
  if (type === "number") return (rank) => holds(values[rank] - wanted);
  if (type === "keyword") return (rank) => holds(byCodePoints(values[rank], wanted));
  const bound = test === "gt" || test === "lte" ? wanted.end : wanted.start;
  const isAfter = test === "gt" || test === "gte";
  return (rank) => times[rank] !== null && (isAfter ? times[rank] >= bound : times[rank] < bound);
}

/** Return the mask of the documents with a value that passes. */
function having({ starts, ranks, exists }, passes) {
  return exists.map((_, document) => {
    for (let at = starts[document]; at < starts[document + 1]; at += 1) if (passes[ranks[at]]) return 1;
    return 0;
  });
}

/** Return a value of a filter, a date as the span of time that it names. */
function ofType(value, type, position) {
  if (type === "number" && Number.isFinite(value)) return value;
  if (type === "boolean" && typeof value === "boolean") return value;
  if (type === "keyword" && typeof value === "string") return value;
  const span = type === "date" && typeof value === "string" ? spanOf(value) : null;
  if (span) return span;
  const expected = { number: "a number", boolean: "true or false", date: 'an ISO 8601 date or date-time, such as "2024-05-31"' }[type] ?? "a string";
  throw malformed(position, `this ${type} field is compared with ${expected}`);
}

/** Return the first microsecond since 1970 of a date or date-time, and the first one after it; null if it is neither. */
function spanOf(text) {
  const [, year, month, day, hour = "0", minute = "0", second = "0", fraction = "", zone = "Z"] = text.match(DATE) ?? [];
  if (year === undefined || Number(hour) > 23 || Number(minute) > 59 || Number(second) > 59) return null;
  const date = new Date(`${year}-${month}-${day}T00:00:00Z`);
  if (Number.isNaN(date.getTime()) || date.getUTCDate() !== Number(day) || year === "0000") return null;
  const offset = zone === "Z" ? 0 : Number(`${zone[0]}1`) * (Number(zone.slice(1, 3)) * 60 + Number(zone.slice(-2)));
  const minutes = BigInt(Number(hour) * 60 + Number(minute) - offset);
  const rest = BigInt(second) * 1_000_000n + BigInt(fraction.padEnd(6, "0").slice(0, 6));
  const start = BigInt(date.getTime()) * 1000n + minutes * MINUTE + rest;
  return { start, end: start + (text.length === 10 ? DAY : 1n) };
}

function malformed(position, problem) {
  return new Refused(422, `the filter is malformed at ${position}: ${problem}`);
}
