/** The terms of texts that BM25 counts, as the analyzers of lightir give them (lightir/analysis.py, words/scripts.py). */

import { englishStem } from "./english.js";

const HAN = "\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{323af}";
const KANA = "\\u3041-\\u3096\\u309d-\\u309f\\u30a1-\\u30fa\\u30fc-\\u30ff\\u31f0-\\u31ff";
const HANGUL = "\\uac00-\\ud7a3";
const SOUTHEAST_ASIAN = "\\u0e01-\\u0e3a\\u0e40-\\u0e4e\\u0e81-\\u0ecd\\u0edc-\\u0edf\\u1000-\\u103f\\u1050-\\u109f\\u1780-\\u17d3";
const UNSPACED = `\\u3005\\u3007${HAN}${KANA}${HANGUL}${SOUTHEAST_ASIAN}`;
const LETTER = "\\p{L}\\p{N}_";

const IS_UNSPACED = new RegExp(`^[${UNSPACED}]`, "u");
const HAN_CHARACTERS = new RegExp(`[${HAN}]`, "gu");
// Marks beyond U+1EFFF, such as variation selectors, are no parts of words.
const RUNS = new RegExp(`[${UNSPACED}]+|(?:(?![${UNSPACED}])(?:[${LETTER}]|(?![\\u{1F000}-\\u{10FFFF}])[\\p{Mn}\\p{Mc}]))+`, "gu");
const WORDS_OF_TWO = new RegExp(`[${LETTER}]{2,}`, "gu");
const HAN_OR_WORDS = new RegExp(`[${HAN}]+|(?:(?![${HAN}])[${LETTER}])+`, "gu");
const IS_HAN = new RegExp(`^[${HAN}]`, "u");

const FOLDED_LETTERS = { ß: "ss", æ: "ae", œ: "oe", ø: "o", ł: "l", đ: "d", ð: "d", þ: "th", ı: "i" };
const FOLDED = new RegExp(`[${Object.keys(FOLDED_LETTERS).join("")}]`, "g");

const MAX_RULED = 50_000;

/** Splits texts into terms. A rule gives the term of most words; the published map has the terms of all others. */
export class Analyzer {
  /**
   * @param {object} settings of the publication: `kind` ("auto", "words", "chinese" or "two"), `english` (whether Latin
   *     words have English stems), `stems_itself` (whether the index has the stems that the rule gives them), `folds` (whether accents are removed), `stop_words` and `question_words`.
   * @param {object|null} map published map of the words of the collection that the rule does not give; null for none.
   */
  constructor(settings, map) {
    this.settings = settings;
    this.map = map;
    this.stopWords = new Set(settings.stop_words);
    this.questionWords = new Set(settings.question_words);
    this.known = new Map();
    this.ruled = new Map();
  }

  /** Return the words of a text in order with their places; a run of an unspaced script is one word. */
  cut(text) {
    const { kind } = this.settings;
    const pattern = kind === "auto" ? RUNS : kind === "chinese" ? HAN_OR_WORDS : WORDS_OF_TWO;
    return [...text.matchAll(pattern)].map((match) => ({ word: match[0], start: match.index, end: match.index + match[0].length }));
  }

  /** Return the words of a text in lower case, each with its terms. */
  async words(text) {
    const words = this.cut(text.toLowerCase()).map(({ word }) => word);
    await this.look(words);
    return words.map((word) => [word, this.termsOf(word)]);
  }

  /** Fetch what the map knows of words that the rule may not give. */
  async look(words) {
    const asked = [...new Set(words)].filter((word) => this.map && !this.known.has(word) && !this.isCertain(word));
    const found = await Promise.all(asked.map((word) => this.map.find(word)));
    asked.forEach((word, i) => this.known.set(word, found[i]?.text.split(" ").filter(Boolean) ?? null));
  }

  /** Return the terms of a word in lower case; of words outside the collection the map knows none, and the rule decides. */
  termsOf(word) {
    const known = this.known.get(word) ?? this.ruled.get(word);
    if (known) return known;
    if (this.ruled.size >= MAX_RULED) this.ruled.clear();
    const terms = this.#byRule(word);
    this.ruled.set(word, terms);
    return terms;
  }

  /** Return a word in lower case in the form in which its stem begins. */
  plain(word) {
    if (this.settings.kind !== "auto") return word;
    const plain = normalized(word);
    return this.settings.folds || !/^\p{Script=Latin}/u.test(plain) ? withoutAccents(plain) : plain;
  }

  /** Return whether the rule is that of the index, so that the map is not needed. */
  isCertain(word) {
    const { kind, stems_itself } = this.settings;
    if (kind === "words") return true;
    return (stems_itself && /^[\x00-\x7f]*$/.test(word)) || this.isUnspaced(word);
  }

  isUnspaced(word) {
    const { kind } = this.settings;
    return kind === "auto" ? IS_UNSPACED.test(word) : kind === "chinese" && IS_HAN.test(word);
  }

  #byRule(word) {
    const { kind } = this.settings;
    if (this.isUnspaced(word)) return characterTerms(word, kind === "chinese");
    if (kind === "words" || kind === "chinese") return [word];
    if (kind === "two") return this.#latin(word, false);
    if (Array.from(word).length < 2) return [];
    if (/^[\x00-\x7f]*$/.test(word)) return atLeastTwo(this.#latin(word, false));
    return runs(normalized(word)).flatMap((run) => (IS_UNSPACED.test(run) ? characterTerms(run, false) : atLeastTwo(this.#otherRun(run))));
  }

  #otherRun(run) {
    const first = run.match(/\p{L}/u)?.[0];
    return first && /\p{Script=Latin}/u.test(first) ? this.#latin(run, true) : [run];
  }

  #latin(word, folds) {
    const plain = folds && this.settings.folds ? withoutAccents(word.replaceAll("i\u0307", "i")) : word;
    if (this.stopWords.has(plain)) return [];
    return [this.settings.english ? englishStem(plain) : plain];
  }
}

function runs(text) {
  return text.match(RUNS) ?? [];
}

/** Return the pairs of adjacent characters of a run, and each Han character alone. */
function characterTerms(run, alwaysSingle) {
  const characters = Array.from(run);
  if (characters.length === 1) return characters;
  const single = alwaysSingle ? characters : (run.match(HAN_CHARACTERS) ?? []);
  return [...single, ...characters.slice(1).map((character, i) => characters[i] + character)];
}

function atLeastTwo(terms) {
  return terms.filter((term) => Array.from(term).length >= 2);
}

function normalized(word) {
  return word.normalize("NFKC").toLowerCase().replace(/(?![0-9])\p{Nd}/gu, decimal);
}

/** Return a decimal digit of any script as 0 to 9: the digits of a script follow each other. */
function decimal(digit) {
  let before = 0;
  while (/\p{Nd}/u.test(String.fromCodePoint(digit.codePointAt(0) - before - 1))) before += 1;
  return String(before % 10);
}

function withoutAccents(word) {
  const plain = word.normalize("NFD").replace(/\p{Mn}/gu, "").normalize("NFC");
  return plain.replace(FOLDED, (letter) => FOLDED_LETTERS[letter]);
}
