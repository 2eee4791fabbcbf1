/** Dialogs: a document, a key, dropped files, and the keyboard's shortcuts. */

import { count, h, marked } from "./dom.js";
import { batches, MAX_BATCH, readFiles } from "./files.js";
import { field } from "./hits.js";

/** A native dialog with a heading and a button that closes it; Escape and a click beside it do too. */
class Dialog {
  constructor(id, title) {
    const close = h("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    close.addEventListener("click", () => this.element.close());
    this.title = h("h2", { id }, title);
    this.content = h("div", { class: "content" });
    this.element = h("dialog", { "aria-labelledby": id }, h("header", {}, this.title, close), this.content);
    this.element.addEventListener("click", (event) => event.target === this.element && this.element.close());
  }

  open() {
    if (!this.element.open) this.element.showModal();
  }
}

/** Shows a document, and in it the passage that was found. */
export class DocumentDialog extends Dialog {
  constructor() {
    super("document-title", "");
  }

  show(document, passage) {
    this.title.textContent = document.title || document.doc_id;
    const spans = passage ? [[passage.start, passage.end]] : [];
    const fields = Object.entries(document.metadata).map(([name, value]) => field(name, value));
    const text = h("div", { class: "text", tabindex: "0", role: "region", "aria-label": "text" }, marked(document.text, spans));
    this.content.replaceChildren(h("p", { class: "facts" }, h("span", { class: "id" }, document.doc_id), fields), text);
    this.open();
    text.querySelector("mark")?.scrollIntoView({ block: "center" });
    text.focus();
  }
}

/** Asks for an API key. */
export class KeyDialog extends Dialog {
  constructor(use) {
    super("key-title", "API key");
    this.input = h("input", { type: "password", id: "key", autocomplete: "off", required: true });
    this.problem = h("p", { class: "error", role: "alert" });
    const form = h(
      "form",
      { class: "key" },
      h("label", { for: "key" }, "This service requires a key. It is kept until you close this tab."),
      this.input,
      this.problem,
      h("button", { type: "submit", class: "main-button" }, "Use the key"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.element.close();
      use(this.input.value.trim());
    });
    this.content.append(form);
  }

  ask(problem) {
    this.problem.textContent = problem ?? "";
    this.open();
  }
}

/** Says which dropped files would be added and which documents they replace, and adds them when that is confirmed. */
export class DropDialog extends Dialog {
  constructor(backend, added) {
    super("drop-title", "Add documents");
    this.backend = backend;
    this.added = added;
  }

  async offer(files) {
    const { documents, refused } = await readFiles(files);
    const problems = refused.map((reason) => h("li", {}, reason));
    const status = h("p", { role: "status" });
    this.content.replaceChildren(problems.length ? h("ul", { class: "refused" }, problems) : "", status);
    this.open();
    if (!documents.length) {
      status.textContent = "There is nothing to add.";
      return;
    }
    try {
      const replaced = await this.#replaced(documents);
      const names = documents.slice(0, 5).map((document) => document.doc_id).join(", ");
      const more = documents.length > 5 ? ` and ${documents.length - 5} more` : "";
      const note = replaced.length ? ` Replaces ${replaced.slice(0, 5).join(", ")}${replaced.length > 5 ? ", …" : ""}.` : "";
      status.textContent = `${count(documents.length, "document")}: ${names}${more}.${note}`;
      const add = h("button", { type: "button", class: "main-button" }, replaced.length ? "Add and replace" : "Add");
      add.addEventListener("click", () => this.#add(documents, status, add));
      this.content.append(add);
      add.focus();
    } catch (error) {
      status.textContent = error.message;
    }
  }

  async #replaced(documents) {
    const ids = documents.map((document) => document.doc_id);
    const found = [];
    for (let start = 0; start < ids.length; start += MAX_BATCH) {
      found.push(...(await this.backend.existing(ids.slice(start, start + MAX_BATCH))));
    }
    return found;
  }

  async #add(documents, status, button) {
    button.remove();
    let done = 0;
    try {
      for (const batch of batches(documents)) {
        status.textContent = `${done} of ${documents.length} added …`;
        await this.backend.add(batch);
        done += batch.length;
      }
      status.textContent = `${count(done, "document")} added. They can be searched now.`;
    } catch (error) {
      status.textContent = `${done} of ${documents.length} added. ${error.message}`;
    }
    this.added();
  }
}

const SHORTCUTS = [
  ["/", "go to the search box"],
  ["↓ ↑", "go through the results"],
  ["Enter", "open a document"],
  ["w", "show why a result matched"],
  ["1 2 3 …", "choose a ranking"],
  ["Esc", "return to the search box, or close a dialog"],
  ["?", "show this list"],
];
const OFF = "lightir-shortcuts-off";

/** Lists the shortcuts, and turns those of single characters off. */
export class ShortcutsDialog extends Dialog {
  constructor() {
    super("shortcuts-title", "Keyboard");
    const rows = SHORTCUTS.map(([keys, text]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, text)]);
    const box = h("input", { type: "checkbox" });
    box.checked = this.on;
    box.addEventListener("change", () => localStorage.setItem(OFF, box.checked ? "" : "1"));
    this.content.append(h("dl", { class: "keys" }, rows), h("label", { class: "value" }, box, "Single characters are shortcuts"));
  }

  get on() {
    return !localStorage.getItem(OFF);
  }

  show() {
    this.open();
  }
}
