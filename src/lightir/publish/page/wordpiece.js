/** A WordPiece tokenizer with BERT's normalization: the term ids that the tokenizers library gives. */

const CHINESE =
  /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;
const REMOVED = /[\0\ufffd]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu;
const WHITE_SPACE = /\p{White_Space}/gu;
const PIECES = /[!-/:-@[-`{-~\p{P}]|[^\s!-/:-@[-`{-~\p{P}]+/gu;

export class WordPiece {
  /**
   * @param {string[]} vocabulary text of each term id.
   * @param {object} settings of the publication: `unknown`, `prefix` and `longest` of the model, and what the normalizer
   *     does: `cleans`, `isolates_chinese`, `strips_accents` and `lower_case`.
   */
  constructor(vocabulary, settings) {
    this.settings = settings;
    this.ids = new Map(vocabulary.map((term, id) => [term, id]));
    this.unknown = this.ids.get(settings.unknown);
  }

  /** Return the term ids of a text, without special terms. */
  encode(text) {
    const words = this.normalize(text).match(PIECES) ?? [];
    return words.flatMap((word) => this.#pieces(word));
  }

  normalize(text) {
    const { cleans, isolates_chinese, strips_accents, lower_case } = this.settings;
    let plain = cleans ? text.replace(REMOVED, "").replace(WHITE_SPACE, " ") : text;
    if (isolates_chinese) plain = plain.replace(CHINESE, " $& ");
    if (strips_accents) plain = plain.normalize("NFD").replace(/\p{Mn}/gu, "");
    // Letter by letter, so that a final sigma is one like any other.
    return lower_case ? plain.replace(/[^\x00-\x7f]/gu, (letter) => letter.toLowerCase()).toLowerCase() : plain;
  }

  /** Return the longest known pieces of a word, from its beginning; the unknown term if a part is not known. */
  #pieces(word) {
    const letters = Array.from(word);
    if (letters.length > this.settings.longest) return [this.unknown];
    const found = [];
    for (let start = 0; start < letters.length; ) {
      let end = letters.length;
      let id;
      for (; end > start; end -= 1) {
        const piece = letters.slice(start, end).join("");
        id = this.ids.get(start ? this.settings.prefix + piece : piece);
        if (id !== undefined) break;
      }
      if (id === undefined) return [this.unknown];
      found.push(id);
      start = end;
    }
    return found;
  }
}
