/** The panels beside the hits: filters, ranking, the request as code, and the index. */

import { h, whole } from "./dom.js";
import { NAMES } from "./hits.js";
import { curlLine, pythonLines } from "./request.js";

export const MAX_K = 50;

const FUSIONS = {
  "": "the index's own",
  absolute: "absolute",
  "linear:min-max": "linear, min-max",
  linear: "linear, share of the best",
  "linear:z-score": "linear, z-score",
  rrf: "reciprocal rank (rrf)",
  dbsf: "distribution-based (dbsf)",
};

/** Return the fields to count values of, and those to compare with bounds, from the types of an index's fields. */
export function fieldsOf(info) {
  const own = Object.entries(info.fields ?? {}).filter(([name]) => !name.startsWith("passage."));
  const types = own.map(([name, type]) => [name, type.split(", ")]);
  const facets = types.filter(([, [type, flag]]) => (type === "keyword" && flag !== "key") || type === "boolean");
  const ranges = types.filter(([, [type]]) => type === "number" || type === "date");
  return { facets: facets.map(([name]) => name), ranges: ranges.map(([name, [type]]) => [name, type]) };
}

/**
 * Return a facet's values with their counts as checkboxes.
 *
 * @param {string} name field.
 * @param {object[]} counted values and counts of the service.
 * @param {Array} chosen chosen values.
 * @param {function} choose called with the new values.
 */
export function facet(name, counted, chosen, choose) {
  const missing = chosen.filter((value) => !counted.some((entry) => entry.value === value));
  const entries = [...missing.map((value) => ({ value, count: 0 })), ...counted];
  if (entries.length < 2 && !chosen.length) return null; // it would not narrow anything
  const rows = entries.map((entry) => {
    const box = h("input", { type: "checkbox", name: `facet-${name}`, "data-focus": `${name}=${entry.value}` });
    box.checked = chosen.includes(entry.value);
    box.addEventListener("change", () =>
      choose(box.checked ? [...chosen, entry.value] : chosen.filter((value) => value !== entry.value)),
    );
    const number = h("span", { class: "number" }, whole(entry.count));
    return h("label", { class: "value" }, box, h("span", { class: "text" }, String(entry.value)), number);
  });
  return h("fieldset", { class: "facet" }, h("legend", {}, name), rows);
}

/** Return the bounds of a field as two inputs. */
export function range(name, type, chosen, choose) {
  const input = (end) => {
    const kind = type === "number" ? { type: "number", step: "any" } : { type: "date" };
    const box = h("input", { ...kind, "aria-label": `${name} ${end}`, placeholder: end });
    box.value = chosen?.[end] ?? "";
    box.addEventListener("change", () => {
      const value = box.value === "" ? null : type === "number" ? Number(box.value) : box.value;
      choose({ ...chosen, [end]: value });
    });
    return box;
  };
  return h("fieldset", { class: "facet range" }, h("legend", {}, name), input("from"), h("span", {}, "–"), input("to"));
}

function slider(label, options, changed) {
  const shown = h("output", {}, options.text ?? options.value);
  const input = h("input", { type: "range", min: options.min, max: options.max, step: options.step });
  input.value = options.value;
  input.addEventListener("input", () => {
    shown.textContent = input.value;
    changed(Number(input.value));
  });
  const name = h("span", { class: "name", "data-branch": options.branch }, label);
  return { input, shown, row: h("label", { class: "slider" }, name, input, shown) };
}

/** The number of hits, the weights of the branches and the fusion method. */
export class RankingPanel {
  /** @param {function} changed called with changed members of the state. */
  constructor(info, state, changed) {
    this.k = slider("Hits", { min: 1, max: MAX_K, step: 1, value: state.k }, (k) => changed({ k }));
    this.weights = {};
    const fused = info.branches.length > 1 ? info.branches : [];
    for (const branch of fused) {
      const options = { min: 0, max: 1, step: 0.01, value: 0.5, text: "–", branch };
      this.weights[branch] = slider(NAMES[branch], options, () => changed({ weights: this.#read() }));
    }
    this.fusion = h("select", {}, Object.entries(FUSIONS).map(([value, text]) => h("option", { value }, text)));
    this.fusion.value = state.fusion ?? "";
    this.fusion.addEventListener("change", () => changed({ fusion: this.fusion.value || null, weights: null }));
    const reset = h("button", { type: "button", class: "plain" }, "Reset weights");
    reset.addEventListener("click", () => {
      this.fusion.value = "";
      changed({ weights: null, fusion: null });
    });
    this.fused = h(
      "fieldset",
      { class: "weights" },
      h("legend", {}, "Weights"),
      Object.values(this.weights).map((weight) => weight.row),
      h("label", { class: "choice" }, h("span", { class: "name" }, "Fusion"), this.fusion),
      reset,
    );
    this.element = h("div", { class: "panel" }, this.k.row, fused.length ? this.fused : null);
  }

  #read() {
    const weights = Object.entries(this.weights).map(([branch, { input }]) => [branch, Number(input.value)]);
    return weights.some(([, weight]) => weight > 0) ? Object.fromEntries(weights) : null;
  }

  /** Show the weights that an answer was made with, unless a person chose others. */
  show(state, answer) {
    this.fused.disabled = state.mode !== state.hybrid && state.mode !== "compare";
    this.k.input.value = this.k.shown.textContent = state.k;
    const used = state.weights ?? Object.fromEntries(Object.entries(answer?.hits[0]?.branches ?? {}).map(([name, b]) => [name, b.weight]));
    if (state.weights === null && this.fused.disabled) return;
    for (const [branch, { input, shown }] of Object.entries(this.weights)) {
      const weight = used[branch];
      if (weight === undefined || weight === null) continue;
      if (weight > Number(input.max)) input.max = weight * 2;
      input.value = weight;
      shown.textContent = String(Number(weight.toFixed(2)));
    }
  }
}

/** The request of what is on screen, as a shell command or a Python program, to copy. */
export class CodePanel {
  constructor() {
    this.code = h("code", {});
    this.pre = h("pre", { tabindex: "0", "aria-label": "request as code" }, this.code);
    this.language = "curl";
    const choices = [
      ["curl", "curl"],
      ["python", "Python"],
    ].map(([value, text]) => {
      const radio = h("input", { type: "radio", name: "language", value });
      radio.checked = value === this.language;
      radio.addEventListener("change", () => {
        this.language = value;
        this.show(...this.shown);
      });
      return h("label", {}, radio, h("span", {}, text));
    });
    const copy = h("button", { type: "button", class: "plain" }, "Copy");
    copy.addEventListener("click", async () => {
      copy.textContent = (await copied(this.code)) ? "Copied" : "Press Ctrl+C";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    const languages = h("div", { class: "segments small", role: "radiogroup", "aria-label": "language" }, choices);
    this.element = h("div", { class: "panel code" }, h("div", { class: "row" }, languages, copy), this.pre);
  }

  show(address, body, withKey) {
    this.shown = [address, body, withKey];
    this.code.textContent = (this.language === "curl" ? curlLine : pythonLines)(address, body, withKey);
  }
}

/** Copy a text; where the clipboard is closed to the page, select it, and return false. */
async function copied(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return false;
  }
}

/** Return facts about the index. */
export function indexFacts(info) {
  const rows = [
    ["Index", info.index],
    ["Documents", whole(info.documents)],
    info.passages ? ["Passages", whole(info.passages)] : null,
    ["Branches", info.branches.map((branch) => NAMES[branch].toLowerCase()).join(", ")],
    ["Model", info.model],
    ["lightir", info.version],
  ];
  return h("dl", { class: "panel" }, rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Return how far the documents are encoded; null if all are, or none will be. */
export function encoding(info) {
  if (!info.pending || info.contract === null) return null;
  const all = info.encoded + info.pending;
  const progress = h("progress", { max: all, "aria-label": "encoded documents" });
  progress.value = info.encoded;
  const what = info.passages ? "documents and passages" : "documents";
  const note = "The others are found by their words, until lightir worker encodes them.";
  return [progress, h("p", {}, `${whole(info.encoded)} of ${whole(all)} ${what} encoded. ${note}`)];
}
