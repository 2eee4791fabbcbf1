/** Builds elements. Text of documents enters the page here alone, as text nodes: nothing is parsed as HTML. */

/**
 * Return a new element.
 *
 * @param {string} tag name of the element.
 * @param {object} properties attributes; `on...` are listeners; null, undefined and false are omitted.
 * @param {...(Node|string|null|Array)} children nodes and strings, which become text nodes.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return a text as nodes, with its spans in <mark>. The spans count code points, as Python does; strings here do not. */
export function marked(text, spans, tag = "mark") {
  const points = Array.from(text);
  const nodes = [];
  let end = 0;
  for (const [from, to] of spans) {
    if (from < end || to > points.length) continue;
    nodes.push(points.slice(end, from).join(""), h(tag, {}, points.slice(from, to).join("")));
    end = to;
  }
  return [...nodes, points.slice(end).join("")];
}

/** Return a bar that fills a share of its width; a style set by script is allowed where one in the HTML is not. */
export function bar(share, branch, negative = false) {
  const filled = h("span", { class: negative ? "fill negative" : "fill", "data-branch": branch });
  filled.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { class: "bar", "aria-hidden": "true" }, filled);
}

/** Return an address if it leads to a web page, else null: a document may hold any text, such as a script's address. */
export function webAddress(value) {
  if (typeof value !== "string" || !/^https?:\/\//i.test(value)) return null;
  try {
    return new URL(value).href;
  } catch {
    return null;
  }
}

const WHOLE = new Intl.NumberFormat("en");

export const count = (number, one, many = `${one}s`) => `${WHOLE.format(number)} ${number === 1 ? one : many}`;

export const whole = (number) => WHOLE.format(number);

/** Return a score with a number of significant digits. */
export const score = (number, digits = 4) => (number === null || number === undefined ? "–" : number.toPrecision(digits));

/** Return milliseconds, more exactly the fewer they are. */
export const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(2) : ms < 100 ? ms.toFixed(1) : Math.round(ms)} ms`;
