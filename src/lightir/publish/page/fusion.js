/** Joins the branches' lists, as lightir/kernel/candidates.py describes. */

/**
 * Return the best documents of one branch, best first.
 *
 * @param {Float64Array} scores scores of all documents; NaN for those that the branch may not return.
 * @param {number} k maximum number of documents.
 * @param {number} above exclusive lower limit of the scores.
 */
export function best(scores, k, above = -Infinity) {
  const heap = []; // the worst document first
  const worse = (a, b) => scores[a] < scores[b] || (scores[a] === scores[b] && a > b);
  for (let document = 0; document < scores.length; document += 1) {
    if (!(scores[document] > above)) continue;
    if (heap.length < k) {
      heap.push(document);
      for (let i = heap.length - 1; i && worse(heap[i], heap[(i - 1) >> 1]); i = (i - 1) >> 1) swap(heap, i, (i - 1) >> 1);
    } else if (worse(heap[0], document)) {
      heap[0] = document;
      sink(heap, worse);
    }
  }
  return heap.sort((a, b) => (worse(a, b) ? 1 : -1));
}

function swap(heap, i, j) {
  [heap[i], heap[j]] = [heap[j], heap[i]];
}

function sink(heap, worse) {
  for (let i = 0; ; ) {
    let least = i;
    for (const child of [2 * i + 1, 2 * i + 2]) if (child < heap.length && worse(heap[child], heap[least])) least = child;
    if (least === i) return;
    swap(heap, i, least);
    i = least;
  }
}

/**
 * Return the candidates of several branches with their fused scores, best first.
 *
 * @param {object[]} branches `name`, `list` (documents, best first), `scores` of all documents, `reach` of the query, and
 *     `slack`: a function of a document that returns how much its score may be too low.
 * @param {object} fusion `scale`, `weights`, `rrf_k` and `spans` of the publication.
 */
export function fused(branches, fusion) {
  if (branches.length === 1) {
    const [{ name, list, scores, slack }] = branches;
    return list.map((document, i) => ({
      document,
      score: scores[document],
      upper: scores[document] + slack(document),
      branches: { [name]: { score: scores[document], rank: i + 1, normalized: scores[document], weight: 1 } },
    }));
  }
  const candidates = [...new Set(branches.flatMap(({ list }) => [...list]))];
  const parts = branches.map(({ name, list, scores, slack, reach }) => {
    const ranks = new Map(list.map((document, i) => [document, i + 1]));
    const normalize = normalizer(list.map((document) => scores[document]), fusion, name, reach);
    return { name, weight: fusion.weights[name], scores, slack, ranks, normalize };
  });
  const rows = candidates.map((document) => {
    const columns = {};
    let [sum, upper] = [0, 0];
    for (const { name, weight, scores, slack, ranks, normalize } of parts) {
      const rank = ranks.get(document) ?? 0;
      const normalized = normalize(scores[document], rank);
      columns[name] = { score: scores[document], rank: rank || null, normalized, weight };
      sum += weight * normalized;
      upper += weight * normalize(scores[document] + slack(document), rank);
    }
    return { document, score: sum, upper, branches: columns };
  });
  return rows.sort((a, b) => b.score - a.score || a.document - b.document);
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
