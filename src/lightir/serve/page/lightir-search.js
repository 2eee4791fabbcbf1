/**
 * The element <lightir-search>: search in a lightir index, as the service's page shows it, for any page.
 *
 *     <script type="module" src="https://search.example.org/page/lightir-search.js"></script>
 *     <lightir-search src="https://search.example.org"></lightir-search>
 *
 * Attributes: `src` (address of the service), `query`, `mode` and `k` (what it starts with), `theme` ("light" or "dark";
 * otherwise the system's), `placeholder`. Property `backend`: an object in place of the service, see backend.js.
 * Events: `lightir-open` (detail: the hit; preventDefault() stops the element from showing the document) and
 * `lightir-change` (detail: query, mode and k).
 */

import { defaultBackend, Refused } from "./backend.js";
import { DocumentDialog, DropDialog, KeyDialog, ShortcutsDialog } from "./dialogs.js";
import { count, h, milliseconds } from "./dom.js";
import { comparison, explanation, NAMES, ranking } from "./hits.js";
import { CodePanel, encoding, facet, fieldsOf, indexFacts, MAX_K, range, RankingPanel } from "./panels.js";
import { facetBodies, rankingOf, searchBody } from "./request.js";

const STYLES = new URL("lightir-search.css", import.meta.url).href;
const FACETS_AFTER_MS = 150;
const PENDING_POLL_MS = 2000;
const POLL_MS = 15_000;
const WIDE_PX = 900;

export class LightirSearch extends HTMLElement {
  #state = { query: "", mode: null, hybrid: null, k: 10, weights: null, fusion: null, values: {}, ranges: {}, typing: false };
  #opened = new Set();
  #running = false;
  #again = false;
  #turn = 0;
  #moving = false;
  #chose = false;
  #offline = false;

  connectedCallback() {
    if (this.shadowRoot) return this.#poll();
    this.backend ??= defaultBackend(this.getAttribute("src"));
    Object.assign(this.#state, {
      query: this.getAttribute("query") ?? "",
      mode: this.getAttribute("mode"),
      k: Math.min(MAX_K, Math.max(1, Number.parseInt(this.getAttribute("k"), 10) || 10)),
    });
    this.#chose = this.#state.mode !== null;
    this.#draw();
    this.#start();
  }

  disconnectedCallback() {
    clearTimeout(this.polling);
  }

  /** The query; setting it searches. */
  get query() {
    return this.#state.query;
  }

  set query(query) {
    this.input.value = query;
    this.#change({ query, typing: false });
  }

  /** Put the cursor into the search box. */
  focus() {
    this.input?.focus();
  }

  // What is drawn once

  #draw() {
    const root = this.attachShadow({ mode: "open" });
    const sheet = h("link", { rel: "stylesheet", href: STYLES, crossorigin: "anonymous" });
    this.input = h("input", {
      type: "search",
      id: "query",
      placeholder: this.getAttribute("placeholder") ?? "Search",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      "aria-describedby": "hint",
      maxlength: "10000",
    });
    this.input.value = this.#state.query;
    this.input.addEventListener("input", () => this.#change({ query: this.input.value, typing: !/\s$/.test(this.input.value) }));
    this.latency = h("p", { class: "latency", "aria-hidden": "true" });
    this.said = h("p", { class: "hidden", role: "status" });
    this.modes = h("div", { class: "segments", role: "radiogroup", "aria-label": "ranking" });
    this.encoding = h("div", { class: "encoding", hidden: true });
    this.chips = h("div", { class: "chips" });
    this.error = h("div", { class: "error", role: "alert" });
    this.results = h("div", { class: "results", role: "region", "aria-label": "results" });
    this.legend = h("p", { class: "legend" });
    this.rail = h("aside", { class: "rail", "aria-label": "filters and ranking" });
    const form = h(
      "form",
      { role: "search", class: "search" },
      h("label", { for: "query", class: "hidden" }, "Search"),
      this.input,
      this.latency,
      h("p", { id: "hint", class: "hidden" }, "Results change as you type. Arrow down goes to them."),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#change({ typing: false });
    });
    this.top = h("div", { class: "top", hidden: true }, this.modes, this.legend);
    this.main = h("div", { class: "main" }, this.top, this.chips, this.results);
    const body = h("div", { class: "body" }, this.rail, this.main);
    this.app = h("div", { class: "app", part: "app" }, form, this.error, this.encoding, body, this.said);
    this.app.hidden = true; // until the styles are there
    this.styles = new Promise((resolve) => ["load", "error"].forEach((name) => sheet.addEventListener(name, resolve)));
    this.styles.then(() => this.#styled());
    this.dialogs = {
      document: new DocumentDialog(),
      key: new KeyDialog((key) => this.#useKey(key)),
      shortcuts: new ShortcutsDialog(),
      drop: new DropDialog(this.backend, () => this.#added()),
    };
    root.append(sheet, this.app, ...Object.values(this.dialogs).map((dialog) => dialog.element));
    this.addEventListener("keydown", (event) => this.#pressed(event));
    this.#acceptFiles();
  }

  #styled() {
    this.app.hidden = false;
    if (this.hasAttribute("autofocus")) this.input.focus();
  }

  async #start() {
    try {
      [this.info] = await Promise.all([this.backend.info(), this.styles]); // the width tells which sections are open
    } catch (error) {
      return this.#failed(error);
    }
    this.#setUp();
    this.#poll();
    return this.#search();
  }

  /** Show the choices that the index offers. Branches appear when its first documents are encoded. */
  #setUp() {
    const { branches, default_mode: usual } = this.info;
    const state = this.#state;
    state.hybrid = branches.length > 1 ? usual : null;
    this.choices = branches.length > 1 ? [...new Set([usual, ...branches]), "compare"] : branches;
    if (!this.choices.includes(state.mode) || !this.#chose) state.mode = usual;
    this.fields = fieldsOf(this.info);
    this.top.hidden = branches.length < 2;
    this.modes.replaceChildren(...this.choices.map((mode) => this.#choice(mode)));
    this.#drawRail();
    this.#showInfo();
  }

  #name(mode) {
    return mode === "compare" ? "Side by side" : mode === this.#state.hybrid ? NAMES.hybrid : (NAMES[mode] ?? mode);
  }

  #choice(mode) {
    const radio = h("input", { type: "radio", name: "mode", value: mode });
    radio.checked = mode === this.#state.mode;
    radio.addEventListener("change", () => this.#choose(mode));
    return h("label", { "data-branch": mode }, radio, h("span", {}, this.#name(mode)));
  }

  #choose(mode) {
    this.#chose = true;
    this.#change({ mode });
  }

  #drawRail() {
    const wide = this.getBoundingClientRect().width >= WIDE_PX;
    const section = (title, ...content) => h("details", { open: wide, class: "section" }, h("summary", {}, title), content);
    this.facets = h("div", { class: "panel" });
    this.ranges = h("div", { class: "panel" });
    for (const [name, type] of this.fields.ranges) {
      const choose = (bounds) => this.#change({ ranges: { ...this.#state.ranges, [name]: bounds } });
      this.ranges.append(range(name, type, this.#state.ranges[name], choose));
    }
    this.panel = new RankingPanel(this.info, this.#state, (changes) => this.#change(changes, { moving: true }));
    this.code = new CodePanel();
    this.about = h("div", {});
    const filters = this.fields.facets.length + this.fields.ranges.length;
    this.rail.replaceChildren(
      ...(filters ? [section("Filters", this.facets, this.ranges)] : []),
      section("Ranking", this.panel.element),
      ...(this.backend.address ? [section("As code", this.code.element)] : []),
      section("Index", this.about),
    );
  }

  // Searching

  #change(changes, { moving = false } = {}) {
    Object.assign(this.#state, changes);
    this.#moving = moving;
    for (const radio of this.modes.querySelectorAll("input")) radio.checked = radio.value === this.#state.mode;
    const { query, mode, k } = this.#state;
    this.dispatchEvent(new CustomEvent("lightir-change", { detail: { query, mode, k }, bubbles: true, composed: true }));
    if (this.info) this.#search();
  }

  /** Search for the newest state. While a search runs, changes wait for its end, and then only the last one counts. */
  async #search() {
    if (this.#running) {
      this.#again = true;
      return;
    }
    this.#running = true;
    this.results.setAttribute("aria-busy", "true");
    this.facets.setAttribute("aria-busy", "true");
    do {
      this.#again = false;
      const state = { ...this.#state };
      try {
        await (state.mode === "compare" && state.query.trim() ? this.#compare(state) : this.#rank(state));
        this.error.replaceChildren();
        this.#offline = false;
      } catch (error) {
        this.#failed(error);
      }
    } while (this.#again);
    this.#running = false;
    this.results.setAttribute("aria-busy", "false");
    this.#countFacets();
  }

  #modeOf(state) {
    return state.mode === "compare" ? state.hybrid : state.mode;
  }

  async #rank(state) {
    const body = searchBody(state, this.#modeOf(state));
    const answer = await this.backend.search({ ...body, explain: true });
    const actions = {
      opened: this.#opened,
      open: (hit) => this.#open(hit),
      why: (hit, place) => this.#why(hit, place, state),
    };
    this.#replace(answer.hits.length ? ranking(answer, actions) : this.#nothing(state));
    this.#shown(state, body, answer);
  }

  async #compare(state) {
    const modes = this.choices.filter((mode) => mode !== "compare");
    const answers = [];
    for (const mode of modes) answers.push(await this.backend.search(searchBody(state, mode))); // one by one, to time them
    const columns = modes.map((mode, index) => [mode === state.hybrid ? "hybrid" : mode, answers[index]]);
    this.#replace(comparison(columns, { open: (hit) => this.#open(hit) }));
    this.#shown(state, searchBody(state, state.hybrid), answers[modes.indexOf(state.hybrid)]);
  }

  #nothing(state) {
    const filtered = Object.values(state.values).some((values) => values.length) || Object.keys(state.ranges).length;
    const advice = this.info.documents === 0 ? "The index is empty." : filtered ? "Fewer filters may help." : "Other words may help.";
    return h("p", { class: "nothing" }, `Nothing found. ${advice}`);
  }

  #shown(state, body, answer) {
    this.latency.replaceChildren(
      h("strong", {}, milliseconds(answer.took_ms)),
      h("span", {}, `search, ${milliseconds(answer.round_trip_ms)} with the network`),
    );
    const n = answer.hits.length;
    clearTimeout(this.saying);
    this.saying = setTimeout(() => (this.said.textContent = `${count(n, "result")} in ${milliseconds(answer.took_ms)}`), 600);
    const parts = Object.keys(answer.hits[0]?.branches ?? {});
    const explained = state.mode !== "compare" && parts.length > 1;
    this.legend.replaceChildren(...(explained ? parts.map((name) => h("span", { "data-branch": name }, NAMES[name])) : []));
    this.panel.show(state, answer);
    if (this.backend.address) this.code.show(this.backend.address, body, Boolean(this.backend.key));
    this.#drawChips();
  }

  /** Replace the results; the focus stays at its document, and documents move to their new places when weights change. */
  #replace(content) {
    const focused = this.shadowRoot.activeElement?.closest(".results [data-id]")?.dataset.id;
    const button = this.shadowRoot.activeElement?.className;
    const before = this.#moving ? this.#places() : new Map();
    this.results.replaceChildren(content);
    if (focused !== undefined) {
      const again = [...this.results.querySelectorAll("[data-id]")].find((row) => row.dataset.id === focused);
      (again?.querySelector(`button.${button}`) ?? this.input).focus({ preventScroll: true });
    }
    if (!before.size || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    for (const [id, [top, row]] of this.#places()) {
      const move = before.has(id) ? before.get(id)[0] - top : 0;
      if (move) row.animate([{ transform: `translateY(${move}px)` }, { transform: "none" }], { duration: 220, easing: "ease-out" });
    }
  }

  #places() {
    return new Map([...this.results.querySelectorAll("li.hit")].map((row) => [row.dataset.id, [row.offsetTop, row]]));
  }

  async #why(hit, place, state) {
    try {
      const body = { ...rankingOf(state, this.#modeOf(state)), doc_id: hit.doc_id };
      place.replaceChildren(...explanation(await this.backend.explain(body), hit.terms ?? []));
    } catch (error) {
      place.replaceChildren(h("p", { class: "quiet" }, error.message));
    }
  }

  // Filters

  #countFacets() {
    const turn = ++this.#turn;
    clearTimeout(this.counting);
    if (!this.info) return;
    this.counting = setTimeout(async () => {
      const state = { ...this.#state };
      const bodies = facetBodies(state, this.#modeOf(state), this.fields.facets);
      try {
        const answers = await Promise.all(bodies.map((body) => this.backend.search(body)));
        if (turn === this.#turn) this.#showFacets(Object.assign({}, ...answers.map((answer) => answer.facets)), answers[0].total);
      } catch (error) {
        if (turn === this.#turn) this.#failed(error);
      }
      if (turn === this.#turn && !this.#running) this.facets.setAttribute("aria-busy", "false");
    }, FACETS_AFTER_MS);
  }

  #showFacets(counted, total) {
    const focused = this.shadowRoot.activeElement?.dataset.focus;
    const { values } = this.#state;
    const drawn = this.fields.facets.map((name) =>
      facet(name, counted[name] ?? [], values[name] ?? [], (chosen) => this.#change({ values: { ...this.#state.values, [name]: chosen } })),
    );
    this.facets.replaceChildren(...drawn.filter(Boolean));
    if (focused) [...this.facets.querySelectorAll("input")].find((box) => box.dataset.focus === focused)?.focus();
    this.total = total;
    this.#drawChips();
  }

  #drawChips() {
    const { values, ranges } = this.#state;
    const chip = (text, remove) => {
      const button = h("button", { type: "button", class: "chip", "aria-label": `remove the filter ${text}` }, text, h("span", { "aria-hidden": "true" }, "×"));
      button.addEventListener("click", remove);
      return button;
    };
    const without = (members, name) => Object.fromEntries(Object.entries(members).filter(([other]) => other !== name));
    const chips = Object.entries(values).flatMap(([name, chosen]) =>
      chosen.map((value) => chip(`${name}: ${value}`, () => this.#change({ values: { ...values, [name]: chosen.filter((v) => v !== value) } }))),
    );
    for (const [name, { from, to }] of Object.entries(ranges)) {
      if ((from ?? null) === null && (to ?? null) === null) continue;
      chips.push(chip(`${name}: ${from ?? ""} – ${to ?? ""}`, () => {
        this.#change({ ranges: without(ranges, name) });
        for (const box of this.ranges.querySelectorAll(`[aria-label^="${CSS.escape(name)} "]`)) box.value = "";
      }));
    }
    const total = this.total === undefined ? [] : [h("span", { class: "total" }, this.#totalText())];
    this.chips.replaceChildren(...total, ...chips);
  }

  #totalText() {
    return this.#state.query.trim() ? count(this.total, "match", "matches") : count(this.total, "document");
  }

  // Documents

  async #open(hit) {
    const opening = new CustomEvent("lightir-open", { detail: hit, bubbles: true, composed: true, cancelable: true });
    if (!this.dispatchEvent(opening)) return;
    try {
      this.dialogs.document.show(await this.backend.document(hit.doc_id), hit.passage);
    } catch (error) {
      this.#failed(error);
    }
  }

  #acceptFiles() {
    let depth = 0;
    const over = (change) => {
      depth = Math.max(0, depth + change);
      this.app.classList.toggle("dropping", depth > 0 && this.#mayWrite);
    };
    this.addEventListener("dragenter", () => over(1));
    this.addEventListener("dragleave", () => over(-1));
    this.addEventListener("dragover", (event) => event.preventDefault());
    this.addEventListener("drop", (event) => {
      event.preventDefault();
      over(-depth);
      if (this.#mayWrite && event.dataTransfer.files.length) this.dialogs.drop.offer([...event.dataTransfer.files]);
    });
  }

  get #mayWrite() {
    return Boolean(this.info) && !this.info.read_only && this.info.role === "write";
  }

  async #added() {
    await this.#refresh();
    this.#search();
  }

  // State of the index

  async #refresh() {
    const before = this.info;
    this.info = await this.backend.info();
    const offers = ({ branches, fields, default_mode }) => JSON.stringify([branches, fields, default_mode]);
    if (offers(before) !== offers(this.info)) this.#setUp();
    else this.#showInfo();
    return before.documents !== this.info.documents || before.encoded !== this.info.encoded;
  }

  #showInfo() {
    const shown = encoding(this.info);
    this.encoding.hidden = shown === null;
    this.encoding.replaceChildren(...(shown ?? []));
    const keys = h("button", { type: "button", class: "plain" }, "Keyboard");
    keys.addEventListener("click", () => this.dialogs.shortcuts.show());
    const facts = indexFacts(this.info);
    if (this.about.firstChild?.textContent === facts.textContent) return; // a focused button stays
    this.about.replaceChildren(facts, ...(this.#mayWrite ? [this.#filePicker()] : []), keys);
  }

  #filePicker() {
    const picker = h("input", { type: "file", multiple: true, class: "hidden", tabindex: "-1", "aria-hidden": "true" });
    picker.addEventListener("change", () => this.dialogs.drop.offer([...picker.files]));
    const button = h("button", { type: "button", class: "plain" }, "Add files");
    button.addEventListener("click", () => picker.click());
    return h("div", { class: "add" }, button, picker, h("p", { class: "quiet" }, "or drop them here: text, Markdown, JSON lines"));
  }

  /** Look for new documents and vectors: often while documents are encoded, and never while the page is hidden. */
  #poll() {
    clearTimeout(this.polling);
    const wait = this.info?.pending ? PENDING_POLL_MS : POLL_MS;
    this.polling = setTimeout(async () => {
      try {
        if (!document.hidden && this.info && ((await this.#refresh()) || this.#offline) && !this.#running) this.#search();
      } catch (error) {
        this.#failed(error);
      }
      if (this.isConnected) this.#poll();
    }, wait);
  }

  #useKey(key) {
    this.backend.key = key;
    this.error.replaceChildren();
    this.#start();
  }

  #failed(error) {
    if (!(error instanceof Refused)) throw error;
    if (error.status === 401) return this.dialogs.key.ask(this.backend.key ? error.message : null);
    this.#offline = error.status === 0;
    return this.error.replaceChildren(h("p", {}, error.message));
  }

  // Keys

  #pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const at = this.shadowRoot.activeElement;
    if (at?.closest("dialog")) return;
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves && (at === this.input || at?.closest(".results"))) {
      event.preventDefault();
      this.#move(at, moves[event.key]);
    } else if (event.key === "Escape" && at !== this.input) {
      this.input.focus();
      this.input.select();
    } else if (!at?.matches("input:not([type=radio], [type=checkbox], [type=range]), select")) {
      this.#shortcut(event, at);
    }
  }

  /** Do what a single key stands for, unless a person has turned these keys off. */
  #shortcut(event, at) {
    if (!this.dialogs.shortcuts.on) return;
    const choice = this.choices?.[Number(event.key) - 1];
    if (event.key === "/") this.input.focus();
    else if (event.key === "?") this.dialogs.shortcuts.show();
    else if (event.key === "w" && at?.closest("li.hit")) at.closest("li.hit").querySelector(".why-button")?.click();
    else if (choice && this.choices.length > 1) this.#choose(choice);
    else return;
    event.preventDefault();
  }

  #move(at, step) {
    const titles = [...this.results.querySelectorAll("button.title")];
    const from = at === this.input ? -1 : titles.indexOf(at.closest("[data-id]")?.querySelector("button.title"));
    const next = from + step;
    if (next < 0) this.input.focus();
    else titles[Math.min(next, titles.length - 1)]?.focus();
  }
}

customElements.define("lightir-search", LightirSearch);
