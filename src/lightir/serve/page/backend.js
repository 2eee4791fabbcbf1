/** The service over HTTP. A component takes any object with these methods in its place. */

/** A refusal of the service, with its message. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let makeBackend = (address) => new HttpBackend(address);

/** Return what an element asks that was given no backend, and whose attribute `src` has an address or is missing. */
export const defaultBackend = (address) => makeBackend(address);

/** Set what `defaultBackend` returns: a function of an address, or of null. */
export function setDefaultBackend(make) {
  makeBackend = make;
}

export class HttpBackend {
  #key = null;

  /** @param {string} address address of the service; a relative one is resolved against the page's. */
  constructor(address) {
    this.address = new URL(address || ".", document.baseURI).href.replace(/\/$/, "").replaceAll("'", "%27");
  }

  /** Key of the requests; null for none. It is kept until the tab is closed. */
  get key() {
    return this.#key ?? sessionStorage.getItem(`lightir-key ${this.address}`);
  }

  set key(key) {
    this.#key = key;
    sessionStorage.setItem(`lightir-key ${this.address}`, key);
  }

  /** Describe the index and the role of the key. */
  info() {
    return this.#ask("GET", "/v1/info");
  }

  /** Search; the answer has `round_trip_ms` too. */
  async search(body) {
    const started = performance.now();
    const answer = await this.#ask("POST", "/v1/search", body);
    return { ...answer, round_trip_ms: performance.now() - started };
  }

  /** Explain a document's score by branch and by term. */
  explain(body) {
    return this.#ask("POST", "/v1/explain", body);
  }

  /** Return a document. Its id is sent in a body: as a part of an address ".." would be another one. */
  async document(docId) {
    const { documents } = await this.#ask("POST", "/v1/get", { doc_ids: [docId] });
    if (!documents.length) throw new Refused(404, `there is no document ${docId} any more`);
    return documents[0];
  }

  /** Return which of at most 1,000 ids have a document. */
  async existing(docIds) {
    const { documents } = await this.#ask("POST", "/v1/get", { doc_ids: docIds });
    return documents.map((document) => document.doc_id);
  }

  /** Add at most 1,000 documents; each replaces the one with its id. They are durable when this returns. */
  add(documents) {
    return this.#ask("POST", "/v1/documents", { documents });
  }

  async #ask(method, path, body) {
    const headers = body === undefined ? {} : { "content-type": "application/json" };
    if (this.key) headers["x-api-key"] = this.key;
    let response;
    try {
      const content = body === undefined ? undefined : JSON.stringify(body);
      response = await fetch(this.address + path, { method, headers, body: content });
    } catch {
      throw new Refused(0, `${this.address} does not answer. Is the service running?`);
    }
    const answer = await response.json().catch(() => ({ detail: response.statusText }));
    if (!response.ok) throw new Refused(response.status, answer.detail ?? response.statusText);
    return answer;
  }
}
