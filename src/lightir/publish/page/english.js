/** Stems of English words by Snowball's English algorithm (Porter2), as PyStemmer gives them. */

const VOWEL = "[aeiouy]";
const CONSONANT = "[^aeiouy]";
const REGION = new RegExp(`^.*?${VOWEL}${CONSONANT}`);
const LONGER_REGION = /^(?:gener|commun|arsen|past|univers|later|emerg|organ|inter)/;
const SHORT_END = new RegExp(`(?:^${VOWEL}${CONSONANT}|${CONSONANT}${VOWEL}[^aeiouywxY])$|^past$`);
const HAS_VOWEL = new RegExp(VOWEL);
const LAST_Y = new RegExp(`(?<=.)(${CONSONANT})[yY]$`, "u");
const PLURAL = new RegExp(`${VOWEL}.*.s$`, "u");
const CONSONANT_AND_Y = new RegExp(`^${CONSONANT}y$`, "u");
const DOUBLE = /(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)$/;

const WHOLE = new Map(
  Object.entries({
    skis: "ski", skies: "sky", idly: "idl", gently: "gentl", ugly: "ugli", early: "earli", only: "onli", singly: "singl",
    sky: "sky", news: "news", howe: "howe", atlas: "atlas", cosmos: "cosmos", bias: "bias", andes: "andes",
  }),
);
const KEPT_AFTER_PLURAL = new Set("inning outing canning herring earring evening proceed exceed succeed".split(" "));

/** Endings of the derivational steps with what takes their place; the longest one that a word has decides. */
const STEP_2 = sorted({
  tional: "tion", enci: "ence", anci: "ance", abli: "able", entli: "ent", izer: "ize", ization: "ize", ational: "ate",
  ation: "ate", ator: "ate", alism: "al", aliti: "al", alli: "al", fulness: "ful", ousli: "ous", ousness: "ous",
  iveness: "ive", iviti: "ive", biliti: "ble", bli: "ble", ogi: "og", ogist: "og", fulli: "ful", lessli: "less", li: "",
});
const STEP_3 = sorted({
  tional: "tion", ational: "ate", alize: "al", icate: "ic", iciti: "ic", ical: "ic", ful: "", ness: "", ative: "",
});
const STEP_4 = sorted(
  Object.fromEntries(
    "al ance ence er ic able ible ant ement ment ent ism ate iti ous ive ize ion".split(" ").map((ending) => [ending, ""]),
  ),
);

function sorted(replacements) {
  return Object.entries(replacements).sort(([a], [b]) => b.length - a.length);
}

/** Return the stem of a word in lower case. */
export function englishStem(word) {
  if (WHOLE.has(word)) return WHOLE.get(word);
  if (Array.from(word).length <= 2) return word;
  const marked = word.replace(/^'/, "").replace(/^y/, "Y").replace(/([aeiouy])y/g, "$1Y");
  const first = regionAfter(marked, 0, LONGER_REGION);
  const second = regionAfter(marked, first);
  const singular = withoutPlural(marked);
  if (KEPT_AFTER_PLURAL.has(singular)) return singular.toLowerCase();
  let stem = withoutPastOrParticiple(singular, first);
  stem = stem.replace(LAST_Y, "$1i");
  stem = derived(stem, STEP_2, (ending, before, start) => {
    if (start < first) return false;
    if (ending === "ogi") return before.endsWith("l");
    return ending !== "li" || /[cdeghkmnrt]$/.test(before);
  });
  stem = derived(stem, STEP_3, (ending, _, start) => start >= (ending === "ative" ? second : first));
  stem = derived(stem, STEP_4, (ending, before, start) => start >= second && (ending !== "ion" || /[st]$/.test(before)));
  return withoutLast(stem, first, second).replaceAll("Y", "y");
}

/** Return where the region begins that follows the first consonant after a vowel, from `start` on. */
function regionAfter(word, start, exceptions) {
  const exception = exceptions && word.match(exceptions);
  if (exception) return exception[0].length;
  const rest = word.slice(start).match(REGION);
  return rest ? start + rest[0].length : word.length;
}

function withoutPlural(word) {
  const plain = word.replace(/'s?'?$/, "");
  if (plain.endsWith("sses")) return plain.slice(0, -2);
  if (/ie[ds]$/.test(plain)) return plain.slice(0, plain.length > 4 ? -2 : -1);
  if (/[us]s$/.test(plain)) return plain;
  return PLURAL.test(plain) ? plain.slice(0, -1) : plain;
}

function withoutPastOrParticiple(word, first) {
  const [, before, ending] = word.match(/^(.*?)(eedly|ingly|edly|eed|ing|ed)$/u) ?? [];
  if (ending === undefined) return word;
  if (ending.startsWith("eed")) return before.length >= first ? `${before}ee` : word;
  if (!HAS_VOWEL.test(before)) return word;
  if (ending === "ing" && CONSONANT_AND_Y.test(before)) return `${before.slice(0, -1)}ie`;
  if (/(?:at|bl|iz)$/.test(before)) return `${before}e`;
  if (DOUBLE.test(before)) return /^[aeo]..$/.test(before) ? before : before.slice(0, -1);
  return before.length === first && SHORT_END.test(before) ? `${before}e` : before;
}

function derived(word, replacements, applies) {
  const found = replacements.find(([ending]) => word.endsWith(ending));
  if (!found) return word;
  const [ending, replacement] = found;
  const before = word.slice(0, word.length - ending.length);
  return applies(ending, before, before.length) ? before + replacement : word;
}

function withoutLast(word, first, second) {
  const start = word.length - 1;
  const before = word.slice(0, -1);
  if (word.endsWith("e")) return start >= second || (start >= first && !SHORT_END.test(before)) ? before : word;
  return word.endsWith("ll") && start >= second ? before : word;
}
