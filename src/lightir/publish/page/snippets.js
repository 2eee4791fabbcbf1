/** The passage of a text with the most different words of a query, as lightir/search/snippets.py chooses it. */

const LENGTH = 240;
const LEAD = 40;
const LONGEST_ENDING = 4;
const SURROGATE = /[\ud800-\udfff]/;

/**
 * Return the best passage of a text and the places of the query's words in it, in code points.
 *
 * @param {object} record record with the `text`, or its beginning, and `isCut`: whether the text goes on. It keeps its words.
 * @param {Set<string>} wanted terms of the query.
 * @param {object} analyzer analyzer of the publication.
 */
export function snippet(record, wanted, analyzer) {
  const { isCut } = record;
  record.cut ??= cut(record.text, analyzer); // the same documents are shown again and again while a person types
  const { plain, points, words } = record.cut;
  const matches = inPoints(plain, points, occurrences(words, wanted, analyzer));
  const [start, end] = points.length <= LENGTH ? [0, points.length] : passage(points, matches);
  const before = start ? "…" : "";
  const after = end < points.length || isCut ? "…" : "";
  const shift = before.length - start;
  const inside = matches.filter((match) => start <= match.start && match.end <= end);
  const highlights = inside.map((match) => [match.start + shift, match.end + shift]);
  const shown = points.slice(start, end);
  return { snippet: before + (points === plain ? shown : shown.join("")) + after, highlights };
}

/** Return a text without repeated white space, its code points (the text itself if each is one unit), and its words. */
function cut(text, analyzer) {
  const plain = text.trim().split(/\s+/).join(" ");
  return { plain, points: SURROGATE.test(plain) ? Array.from(plain) : plain, words: distinct(analyzer.cut(plain), analyzer) };
}

/**
 * Return the different words of a text with their places, by their first letter.
 *
 * The letters of unspaced scripts and of words whose terms may begin with another letter are "".
 */
function distinct(words, analyzer) {
  const places = new Map();
  for (const { word, start, end } of words) {
    const isUnspaced = analyzer.isUnspaced(word);
    const known = isUnspaced ? word : word.toLowerCase();
    if (!places.has(known)) places.set(known, { word: known, isUnspaced, spans: [] });
    places.get(known).spans.push([start, end]);
  }
  const byLetter = new Map();
  for (const entry of places.values()) {
    const letter = !entry.isUnspaced && analyzer.isCertain(entry.word) ? entry.word[0] : "";
    if (!byLetter.has(letter)) byLetter.set(letter, []);
    byLetter.get(letter).push(entry);
  }
  return byLetter;
}

/** Return the spans of the words of a text that have any of the wanted terms, in text order. */
function occurrences(byLetter, wanted, analyzer) {
  if (!wanted.size) return [];
  const found = [];
  for (const letter of new Set(["", ...Array.from(wanted, (term) => term[0])])) {
    for (const { word, isUnspaced, spans } of byLetter.get(letter) ?? []) {
      if (isUnspaced) for (const [start] of spans) found.push(...pairsIn(word, start, wanted));
      else {
        const terms = termsIn(word, wanted, analyzer);
        if (terms.length) for (const [start, end] of spans) found.push({ start, end, terms });
      }
    }
  }
  return found.sort((a, b) => a.start - b.start);
}

/** Return the wanted terms of a word. Stems that only the map knows are compared with the word's beginning. */
function termsIn(word, wanted, analyzer) {
  const terms = analyzer.termsOf(word).filter((term) => wanted.has(term));
  if (terms.length || !analyzer.map || analyzer.known.has(word) || analyzer.isCertain(word)) return terms;
  return [...wanted].filter((term) => term.length > 2 && word.startsWith(term) && word.length - term.length <= LONGEST_ENDING);
}

/** Return the wanted pairs of a run, before single characters. */
function pairsIn(run, first, wanted) {
  const characters = Array.from(run);
  const found = [];
  let start = first;
  for (let i = 0; i < characters.length; ) {
    const pair = characters[i] + (characters[i + 1] ?? "");
    const taken = i + 1 < characters.length && wanted.has(pair) ? pair : characters[i];
    const terms = [...new Set([taken, ...Array.from(taken)])].filter((term) => wanted.has(term));
    if (terms.length) found.push({ start, end: start + taken.length, terms });
    start += taken.length;
    i += taken === characters[i] ? 1 : 2;
  }
  return found;
}

/** Return spans of a text's UTF-16 units as spans of its code points. */
function inPoints(text, points, spans) {
  if (text === points) return spans;
  const place = new Map();
  let unit = 0;
  points.forEach((point, i) => {
    place.set(unit, i);
    unit += point.length;
  });
  place.set(unit, points.length);
  return spans.map((span) => ({ ...span, start: place.get(span.start), end: place.get(span.end) }));
}

/** Return the start and the end of the passage, between words if blanks are near. */
function passage(points, matches) {
  const first = bestStart(matches, LENGTH - LEAD);
  let start = Math.max(0, first - LEAD);
  if (start) {
    const blank = points.indexOf(" ", start - 1);
    start = blank >= 0 && blank < first ? blank + 1 : start;
  }
  let end = Math.min(points.length, start + LENGTH);
  if (end < points.length) {
    const blank = points.lastIndexOf(" ", end);
    end = blank >= start + LENGTH / 2 ? blank : end;
  }
  return [start, end];
}

/** Return the start of the first window with the most different terms; 0 without matches. */
function bestStart(matches, length) {
  let [most, start, end] = [0, 0, 0];
  const counts = new Map(); // of the terms in the window
  matches.forEach((first, i) => {
    for (; end < matches.length && (end <= i || matches[end].end <= first.start + length); end += 1) {
      for (const term of matches[end].terms) counts.set(term, (counts.get(term) ?? 0) + 1);
    }
    if (counts.size > most) [most, start] = [counts.size, first.start];
    for (const term of first.terms) {
      if (counts.get(term) === 1) counts.delete(term);
      else counts.set(term, counts.get(term) - 1);
    }
  });
  return start;
}
