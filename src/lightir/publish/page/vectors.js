/** Dense scores: exact ones of small collections; otherwise all are estimated from codes, and then those of the best refined. */

const STEPS = 256; // of the second byte in one of the first
const DEVIATION_STEPS = 64; // of a document's deviation in the mean one

export class Vectors {
  static async open(store) {
    const { dense, documents } = store.manifest;
    const vectors = Object.assign(new Vectors(), { store, dim: dense.dim, n: documents, code: dense.code, hasLows: dense.has_lows });
    vectors.read = { rows: new Map(), lows: new Map() };
    if (dense.code) {
      const [codes, numbers, matrix] = await Promise.all(["codes", "code-numbers", "code-matrix"].map((name) => store.whole(name)));
      vectors.codes = codes;
      vectors.numbers = new Float32Array(numbers.buffer.slice(numbers.byteOffset, numbers.byteOffset + numbers.byteLength));
      vectors.matrix = new Int8Array(matrix.buffer, matrix.byteOffset, matrix.byteLength);
    } else [vectors.rows, vectors.lows] = await Promise.all([store.whole("rows"), dense.has_lows ? store.whole("lows") : null]);
    return vectors;
  }

  /** Return the standard deviation of a document's score, as `scores` gives it, from that of its row. */
  deviation(document) {
    if (!this.code) return 0;
    const width = this.code.bits.length + 1;
    return (this.codes[document * width + width - 1] / DEVIATION_STEPS) * this.code.deviation;
  }

  /** Return the standard deviation of a document's score after `refine`, which reads rounded numbers of its row. */
  rounding(document) {
    return this.hasLows ? this.#scale(this.#row(document)) / Math.sqrt(12) : 0;
  }

  /** Return the (n,) scores of all documents: estimated from codes, or exact if all rows were read. */
  scores(query) {
    const scores = this.code ? this.#estimated(query) : new Float64Array(this.n);
    if (!this.code) for (let document = 0; document < this.n; document += 1) scores[document] = this.#score(query, this.#row(document), this.#low(document));
    return scores;
  }

  /** Set the scores of some documents to those of the first bytes of their rows, which are read. */
  async refine(query, documents, scores) {
    await this.#fetch("rows", documents, this.dim + 4);
    for (const document of documents) scores[document] = this.#score(query, this.#row(document));
  }

  /** Set the scores of some documents to the exact ones. */
  async complete(query, documents, scores) {
    await this.#fetchRows(documents);
    for (const document of documents) scores[document] = this.#score(query, this.#row(document), this.#low(document));
  }

  /** Return the part of each term of a query in the score of a document, the largest first. */
  async termsOf({ parts }, document) {
    await this.#fetchRows([document]);
    const terms = parts().map(({ term, count, values }) => {
      return { term, word: "", weight: count, score: this.#score(values, this.#row(document), this.#low(document)) };
    });
    return terms.sort((a, b) => b.score - a.score);
  }

  async #fetchRows(documents) {
    if (!this.code) return;
    await Promise.all([this.#fetch("rows", documents, this.dim + 4), this.hasLows ? this.#fetch("lows", documents, this.dim) : null]);
  }

  async #fetch(name, documents, width) {
    const lacking = documents.filter((document) => !this.read[name].has(document));
    const read = await this.store.ranges(name, lacking.map((document) => [document * width, (document + 1) * width]));
    lacking.forEach((document, i) => this.read[name].set(document, read[i]));
  }

  #row(document) {
    const width = this.dim + 4;
    return this.code ? this.read.rows.get(document) : this.rows.subarray(document * width, (document + 1) * width);
  }

  #low(document) {
    return this.code ? this.read.lows.get(document) : this.lows?.subarray(document * this.dim, (document + 1) * this.dim);
  }

  #scale(row) {
    return new DataView(row.buffer, row.byteOffset + this.dim, 4).getFloat32(0, true);
  }

  #score(query, row, lows = null) {
    const scale = this.#scale(row);
    const highs = new Int8Array(row.buffer, row.byteOffset, this.dim);
    let sum = 0;
    for (let j = 0; j < this.dim; j += 1) sum += query[j] * highs[j];
    if (lows) {
      const rest = new Int8Array(lows.buffer, lows.byteOffset, this.dim);
      for (let j = 0; j < this.dim; j += 1) sum += (query[j] * rest[j]) / STEPS;
    }
    return Math.fround(sum * scale);
  }

  /** Return estimated scores: each byte of a code looks its part of the score up in a table of the query. */
  #estimated(query) {
    const { codes, n } = this;
    const end = this.code.bits.length * 256;
    const tables = this.#tables(query);
    const scores = new Float64Array(n);
    let base = 0;
    for (let j = 0; j < this.dim; j += 1) base += query[j] * this.numbers[j];
    for (let document = 0, at = 0; document < n; document += 1) {
      let sum = base;
      for (let table = 0; table < end; table += 256, at += 1) sum += tables[table + codes[at]];
      scores[document] = sum;
      at += 1; // the last byte is the deviation
    }
    return scores;
  }

  /** Return for each byte of a code the (256,) sums of what its components contribute to a score, for all its values. */
  #tables(query) {
    const { bits } = this.code;
    const tables = new Float32Array(bits.length * 256);
    let [component, level] = [0, this.dim + bits.flat().length];
    bits.forEach((widths, byte) => {
      const start = byte * 256;
      let filled = 1; // values of the components so far, which are the lower bits
      for (const width of widths) {
        const value = this.#component(query, component);
        for (let own = 2 ** width - 1; own >= 0; own -= 1) {
          const part = value * this.numbers[level + own];
          for (let lower = 0; lower < filled; lower += 1) tables[start + own * filled + lower] = tables[start + lower] + part;
        }
        filled *= 2 ** width;
        level += 2 ** width;
        component += 1;
      }
    });
    return tables;
  }

  #component(query, component) {
    const { dim, matrix } = this;
    let sum = 0;
    for (let j = 0, at = component * dim; j < dim; j += 1, at += 1) sum += query[j] * matrix[at];
    return sum * this.numbers[dim + component];
  }
}
