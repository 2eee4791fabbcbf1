/** Titles, texts and metadata of documents and passages, read as hits are shown. */

import { numbers, starts, unpacked } from "./store.js";

const TEXT = new TextDecoder();

export class Records {
  #numbers = new Map(); // of the documents that were shown, by id

  static async open(store) {
    const { has_passages } = store.manifest;
    const names = ["record-sizes", "text-sizes", ...(has_passages ? ["groups"] : [])];
    const [recordSizes, textSizes, distances] = (await Promise.all(names.map((name) => store.whole(name)))).map(numbers);
    const records = Object.assign(new Records(), { store, read: new Map() });
    records.groups = distances?.map((distance, row) => row - distance) ?? null;
    records.places = { records: starts(recordSizes), texts: starts(textSizes) };
    return records;
  }

  /** Return the first k rows of different documents. */
  firstOfDocuments(rows, k) {
    if (!this.groups) return rows.slice(0, k);
    const seen = new Set();
    const first = [];
    for (const row of rows) {
      if (first.length === k) break;
      const group = this.groups[row.document];
      if (!seen.has(group)) first.push(row);
      seen.add(group);
    }
    return first;
  }

  /** Return a record: `doc_id`, `title`, `text`, `metadata`, `passage` of a passage, and whether the text goes on. */
  async record(document) {
    if (!this.read.has(document)) {
      const reading = this.#unpack("records", document).then((text) => ({ isCut: this.#isCut(document), ...JSON.parse(text) }));
      this.read.set(document, reading);
      reading.catch(() => this.read.delete(document));
    }
    const record = await this.read.get(document);
    this.#numbers.set(record.doc_id, document);
    return record;
  }

  /** Return where a document that was shown is in a ranking; -1 if it is not. */
  indexOf(rows, docId) {
    const number = this.#numbers.get(docId);
    const group = this.groups ? this.groups[number] : number;
    return rows.findIndex(({ document }) => (this.groups ? this.groups[document] : document) === group);
  }

  /** Return a document that was shown, with its whole text; null if none has the id. */
  async document(docId) {
    const number = this.#numbers.get(docId);
    if (number === undefined) return null;
    const members = this.groups ? this.groups.flatMap((group, i) => (group === this.groups[number] ? [i] : [])) : [number];
    const parts = await Promise.all(members.map((member) => this.#whole(member)));
    parts.sort((a, b) => (a.passage?.start ?? 0) - (b.passage?.start ?? 0));
    const points = [];
    for (const { text, passage } of parts) points.push(...Array.from(text).slice(points.length - (passage?.start ?? 0)));
    const [{ title, document_title, metadata }] = parts;
    return { doc_id: docId, title: document_title ?? title, text: points.join(""), metadata };
  }

  async #whole(document) {
    const record = await this.record(document);
    return this.#isCut(document) ? { ...record, text: await this.#unpack("texts", document) } : record;
  }

  #isCut(document) {
    return this.places.texts[document + 1] > this.places.texts[document];
  }

  async #unpack(name, document) {
    const content = await this.store.range(name, this.places[name][document], this.places[name][document + 1]);
    return TEXT.decode(await unpacked(content, "deflate-raw"));
  }
}
