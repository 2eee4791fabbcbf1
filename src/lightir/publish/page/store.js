/** Reads the files of a publication, whole or in ranges. Hosts that ignore ranges send whole files, which are kept. */

import { Refused } from "../page/backend.js";

export const FORMAT_VERSION = 2;

const MANIFEST = "search.json";
const MAX_GAP = 256; // bytes between spans that one request reads: about as many as a request's headers have
const MAX_KEPT_BYTES = 64 * 2 ** 20;

export class Store {
  #kept = new Map();
  #keptBytes = 0;
  #open = 0;
  #since = 0;

  /** @param {URL|string} address address of the published folder. */
  constructor(address) {
    this.address = new URL(address);
    if (!this.address.pathname.endsWith("/")) this.address.pathname += "/";
    this.requests = 0;
    this.transferred = 0;
    this.waited_ms = 0; // while at least one request was open
    this.ignoresRanges = false;
  }

  /** Read what the publication says of itself, always from the host, so that caches do not mix two publications. */
  async open() {
    const { content: bytes } = await this.#ask(MANIFEST, { cache: "no-cache" });
    const content = parsed(bytes);
    if (content?.format_version !== FORMAT_VERSION) {
      const version = content?.format_version ?? "none";
      throw new Refused(500, `${this.address} has the format ${version}; this script reads ${FORMAT_VERSION}. Reload the page.`);
    }
    this.manifest = content;
    return content;
  }

  /** Return all bytes of a file, unpacked. */
  async whole(name) {
    const { bytes, packed } = this.manifest.files[name];
    const content = await this.range(name, 0, bytes);
    return packed ? unpacked(content, "gzip") : content;
  }

  /** Return some bytes of a file. */
  async range(name, start, end) {
    return (await this.ranges(name, [[start, end]]))[0];
  }

  /** Return several spans of a file's bytes; those that are close to each other come in one request. */
  async ranges(name, spans) {
    const order = spans.map((_, i) => i).sort((a, b) => spans[a][0] - spans[b][0]);
    const groups = [];
    for (const i of order) {
      const [start, end] = spans[i];
      const last = groups.at(-1);
      if (last && start - last.end <= MAX_GAP) {
        last.end = Math.max(last.end, end);
        last.members.push(i);
      } else groups.push({ start, end, members: [i] });
    }
    const found = new Array(spans.length);
    const read = async ({ start, end, members }) => {
      const content = await this.#bytes(name, start, end);
      for (const i of members) found[i] = content.subarray(spans[i][0] - start, spans[i][1] - start);
    };
    await Promise.all(groups.map(read));
    return found;
  }

  async #bytes(name, start, end) {
    if (end <= start) return new Uint8Array(0);
    const size = this.manifest.part_bytes;
    const pieces = [];
    for (let part = Math.floor(start / size); part * size < end; part += 1) {
      pieces.push(this.#piece(name, part, Math.max(0, start - part * size), Math.min(size, end - part * size)));
    }
    return joined(await Promise.all(pieces));
  }

  /** Return a span of one part. What was read is kept; a part that a host sent whole serves all later spans. */
  async #piece(name, part, start, end) {
    const { bytes } = this.manifest.files[name];
    const path = `${this.manifest.folder}/${name}-${String(part).padStart(4, "0")}.bin`;
    const length = Math.min(this.manifest.part_bytes, bytes - part * this.manifest.part_bytes);
    if (this.#kept.has(path)) return (await this.#kept.get(path)).subarray(start, end);
    const isWhole = start === 0 && end === length;
    if (!isWhole && this.ignoresRanges) return (await this.#piece(name, part, 0, length)).subarray(start, end);
    const key = isWhole ? path : `${path} ${start} ${end}`;
    if (!this.#kept.has(key)) this.#keep(key, this.#read(path, start, end, length, isWhole), end - start);
    return this.#kept.get(key);
  }

  #keep(key, reading, bytes) {
    if (this.#keptBytes + bytes > MAX_KEPT_BYTES) {
      this.#kept.clear();
      this.#keptBytes = 0;
    }
    this.#keptBytes += bytes;
    this.#kept.set(key, reading);
    reading.catch(() => this.#kept.delete(key)); // the next search asks again
  }

  async #read(path, start, end, length, isWhole) {
    const { status, content } = await this.#ask(path, isWhole ? {} : { headers: { range: `bytes=${start}-${end - 1}` } });
    const isPart = status === 206;
    if (content.length !== (isPart ? end - start : length)) {
      throw new Refused(500, `${path} has ${content.length} bytes; expected ${isPart ? end - start : length}. Publish the index again.`);
    }
    if (isPart || isWhole) return content;
    this.ignoresRanges = true;
    this.#keep(path, Promise.resolve(content), length);
    return content.subarray(start, end);
  }

  async #ask(path, options) {
    this.requests += 1;
    if (!this.#open) this.#since = performance.now();
    this.#open += 1;
    try {
      const response = await fetch(new URL(path, this.address), options).catch(() => this.#unanswered());
      if (!response.ok) {
        const advice = response.status === 404 && path !== MANIFEST ? "The index was published again: reload the page." : response.statusText;
        throw new Refused(response.status, `${this.address}${path} cannot be read: ${advice}`);
      }
      const content = new Uint8Array(await response.arrayBuffer().catch(() => this.#unanswered()));
      this.transferred += content.length;
      return { status: response.status, content };
    } finally {
      this.#open -= 1;
      if (!this.#open) this.waited_ms += performance.now() - this.#since;
    }
  }

  #unanswered() {
    throw new Refused(0, `${this.address} does not answer. Is there a network?`);
  }
}

function parsed(bytes) {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return null;
  }
}

/** Return the bytes that a format of compression stands for. */
export async function unpacked(content, format) {
  const { readable, writable } = new DecompressionStream(format);
  const unpacking = new Response(readable).arrayBuffer();
  const writer = writable.getWriter(); // a Blob's stream would take about a millisecond for each record
  await Promise.all([writer.write(content), writer.close(), unpacking]);
  return new Uint8Array(await unpacking);
}

function joined(pieces) {
  if (pieces.length === 1) return pieces[0];
  const content = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let start = 0;
  for (const piece of pieces) {
    content.set(piece, start);
    start += piece.length;
  }
  return content;
}

/** Reads numbers of 7 bits a byte, the lowest first, and texts. */
export class Reader {
  constructor(bytes, position = 0) {
    this.bytes = bytes;
    this.position = position;
  }

  get done() {
    return this.position >= this.bytes.length;
  }

  number() {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = this.bytes[this.position++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  }

  take(length) {
    this.position += length;
    return this.bytes.subarray(this.position - length, this.position);
  }
}

/** Return all numbers of a file of numbers. */
export function numbers(bytes) {
  const reader = new Reader(bytes);
  const values = [];
  while (!reader.done) values.push(reader.number());
  return values;
}

/** Return the sums before each of some numbers, and the sum of all. */
export function starts(values) {
  const sums = new Float64Array(values.length + 1);
  values.forEach((value, i) => (sums[i + 1] = sums[i] + value));
  return sums;
}
