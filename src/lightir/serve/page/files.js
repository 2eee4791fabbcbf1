/** Reads files that a person drops as documents. Text files only: other formats are read by `lightir index`. */

export const MAX_BATCH = 500;
const MAX_BATCH_CHARACTERS = 2_000_000;

/**
 * Return the documents of files and the reasons why others were left out.
 *
 * @param {File[]} files text files, each a document; or JSON lines, each line one.
 * @returns {Promise<{documents: object[], refused: string[]}>}
 */
export async function readFiles(files) {
  const documents = [];
  const refused = [];
  for (const file of files) {
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new Error("it is not a text file");
      documents.push(...(/\.(jsonl|ndjson)$/i.test(file.name) ? lines(text) : [whole(file, text)]));
    } catch (error) {
      const reason = error instanceof TypeError ? "it is not a text file in UTF-8; index it with: lightir index" : error.message;
      refused.push(`${file.name}: ${reason}`);
    }
  }
  return { documents, refused };
}

/** Yield documents in batches that a request may hold. */
export function* batches(documents) {
  let batch = [];
  let characters = 0;
  for (const document of documents) {
    if (batch.length && (batch.length === MAX_BATCH || characters + document.text.length > MAX_BATCH_CHARACTERS)) {
      yield batch;
      batch = [];
      characters = 0;
    }
    batch.push(document);
    characters += document.text.length;
  }
  if (batch.length) yield batch;
}

function whole(file, text) {
  if (!text.trim()) throw new Error("it is empty");
  const heading = /\.(md|markdown)$/i.test(file.name) ? text.match(/^#\s+(.+)$/m) : null;
  return { doc_id: file.webkitRelativePath || file.name, title: heading ? heading[1].trim() : file.name, text };
}

function lines(text) {
  return text.split("\n").flatMap((line, index) => (line.trim() ? [fromLine(line, index + 1)] : []));
}

function fromLine(line, number) {
  let value;
  try {
    value = JSON.parse(line);
  } catch {
    throw new Error(`line ${number} is not JSON`);
  }
  const { _id, id, doc_id, title = "", text, metadata, ...rest } = value ?? {};
  const name = doc_id ?? _id ?? id;
  if (typeof text !== "string" || typeof title !== "string" || name === undefined || String(name) === "") {
    throw new Error(`line ${number} needs _id and text`);
  }
  return { doc_id: String(name), title, text, metadata: { ...rest, ...metadata } };
}
