/** Joins the branches' lists, as lightir/kernel/candidates.py describes. */

/**
 * Return the best documents of one branch, best first; equal ones in the order of their numbers.
 *
 * @param {Float32Array|Float64Array} scores scores of all documents; NaN for those that the branch may not return.
 * @param {number} k maximum number of documents.
 * @param {number} above exclusive lower limit of the scores.
 */
export function best(scores, k, above = -Infinity) {
  const heap = []; // the worst document first
  let least = above;
  for (let document = 0; document < scores.length; document += 1) {
    if (!(scores[document] > least)) continue; // an equal one with a larger number is worse
    if (heap.length < k) rise(heap, document, scores);
    else sink(heap, document, scores);
    if (heap.length === k) least = scores[heap[0]];
  }
  return heap.sort((a, b) => scores[b] - scores[a] || a - b);
}

function isWorse(a, b, scores) {
  return scores[a] < scores[b] || (scores[a] === scores[b] && a > b);
}

/** Add a document to a heap. */
function rise(heap, document, scores) {
  let at = heap.length;
  heap.push(document);
  for (let parent = (at - 1) >> 1; at && isWorse(document, heap[parent], scores); parent = (at - 1) >> 1) {
    heap[at] = heap[parent];
    at = parent;
  }
  heap[at] = document;
}

/** Replace the worst document of a heap. */
function sink(heap, document, scores) {
  let at = 0;
  for (let child = 1; child < heap.length; child = 2 * at + 1) {
    if (child + 1 < heap.length && isWorse(heap[child + 1], heap[child], scores)) child += 1;
    if (!isWorse(heap[child], document, scores)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = document;
}

/** The best documents of a branch, of which some get other scores: further documents are kept to take their places. */
export class ChangingBest {
  #changed = new Set();

  /** The parameters are those of `best`; `spare` is the number of documents whose change is cheap. */
  constructor(scores, k, spare) {
    Object.assign(this, { scores, k, spare });
    this.pool = best(scores, k + spare);
  }

  /** Note that the scores of some documents are others now. */
  change(documents) {
    for (const document of documents) this.#changed.add(document);
  }

  /** Return the best documents. As long as at most `spare` have changed, all k are in the pool or changed. */
  list() {
    if (this.#changed.size > this.spare) {
      this.pool = best(this.scores, this.k + this.spare);
      this.#changed.clear();
    }
    const { scores } = this;
    const documents = [...new Set([...this.pool, ...this.#changed])];
    return documents.sort((a, b) => scores[b] - scores[a] || a - b).slice(0, this.k);
  }
}

/**
 * Return the candidates of several branches with their fused scores, best first.
 *
 * @param {object[]} branches `name`, `list` (documents, best first), `scores` of all documents, `reach` of the query, and
 *     `slack`: a function of a document that returns how much its score may be too low.
 * @param {object} fusion `scale`, `weights`, `rrf_k` and `spans` of the publication.
 * @returns {object} `rows` of `document`, `score` and `upper` (the score that it may have), and `branches`: a function of a
 *     document that returns its parts by branch.
 */
export function fused(branches, fusion) {
  const parts = branches.map((branch) => partOf(branch, fusion, branches.length === 1));
  const candidates = new Set(branches.flatMap(({ list }) => list));
  const rows = Array.from(candidates, (document) => {
    let [score, upper] = [0, 0];
    for (const { weight, scores, slack, ranks, normalize } of parts) {
      const rank = ranks.get(document) ?? 0;
      const normalized = normalize(scores[document], rank);
      const missing = slack(document);
      score += weight * normalized;
      upper += weight * (missing ? normalize(scores[document] + missing, rank) : normalized);
    }
    return { document, score, upper };
  });
  rows.sort((a, b) => b.score - a.score || a.document - b.document);
  return { rows, branches: (document) => Object.fromEntries(parts.map((part) => [part.name, columnOf(part, document)])) };
}

/** Return what is needed of a branch; one alone keeps its scores. */
function partOf({ name, list, scores, slack, reach }, fusion, isAlone) {
  const ranks = new Map(list.map((document, i) => [document, i + 1]));
  if (isAlone) return { name, weight: 1, scores, slack, ranks, normalize: (score) => score };
  const normalize = normalizer(list.map((document) => scores[document]), fusion, name, reach);
  return { name, weight: fusion.weights[name], scores, slack, ranks, normalize };
}

function columnOf({ weight, scores, ranks, normalize }, document) {
  const [score, rank] = [scores[document], ranks.get(document) ?? 0];
  return { score, rank: rank || null, normalized: normalize(score, rank), weight };
}

function normalizer(listed, { scale, rrf_k, spans }, name, reach) {
  if (!listed.length) return () => 0;
  if (scale === "absolute") {
    const [low, high] = spans[name].map((score) => score * reach);
    return (score) => (high > low ? Math.max((score - low) / (high - low), 0) : 0);
  }
  if (scale === "rrf") return (_, rank) => (rank ? 1 / (rrf_k + rank) : 0);
  if (scale === "none") return (score) => score;
  const most = Math.max(...listed);
  let least = Math.min(...listed);
  if (scale === "max") least = Math.min(least, 0);
  if (scale === "max" || scale === "min-max") {
    return (score) => (least === most ? Number(score >= most) : Math.min(Math.max((score - least) / (most - least), 0), 1));
  }
  if (least === most) return scale === "z-score" ? (score) => (score >= most ? 0 : -1) : (score) => (score >= most ? 0.5 : 0);
  const mean = listed.reduce((sum, score) => sum + score, 0) / listed.length;
  const deviation = Math.sqrt(listed.reduce((sum, score) => sum + (score - mean) ** 2, 0) / (listed.length - 1));
  return scale === "z-score" ? (score) => (score - mean) / deviation : (score) => Math.max(0.5 + (score - mean) / deviation / 6, 0);
}
