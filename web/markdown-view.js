// Markdown view: a reply as it comes, shown as markdown.
//
// Theory of operation. All blocks but the last two are final (markdown.js); only the text from there on is parsed
// again. Of the blocks that come out, those whose HTML is another than before are sanitised, and what is shown is
// changed where it differs: a word that is added to a paragraph is added to its text node, so nothing flickers and
// what is selected stays selected. A long block costs as much each time, so the time between two renderings is a
// multiple of what the last one took: it stays a bounded part of the time that the reply takes.

import purify from "../vendor/dompurify.mjs";
import { blocksOf, SAFE_URL } from "./markdown.js";
import { htmlPolicy } from "./trusted.js";

/** A block that may still change. @typedef {{html: string, nodes: ChildNode[]}} LiveBlock */

// Blocks at the end that what follows may change.
const LIVE_BLOCKS = 2;
const MIN_PAUSE_MS = 16;
// A rendering takes at most one part in so many of the time.
const PAUSE_PER_COST = 4;
// Longer than any reply of a model that runs in a page; what is longer is shown as it is.
const MAX_CHARS = 1 << 18;

const TAGS =
  "p h3 h4 h5 h6 ul ol li blockquote pre code em strong s del a br hr table thead tbody tr th td div".split(" ");
const SANITISER = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", "target", "rel", "start", "align", "tabindex"],
  ADD_URI_SAFE_ATTR: ["target", "rel", "start", "align", "tabindex"], // the others' values are URLs
  ALLOWED_URI_REGEXP: SAFE_URL,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  KEEP_CONTENT: true,
  RETURN_DOM_FRAGMENT: true,
  ...(htmlPolicy && { TRUSTED_TYPES_POLICY: htmlPolicy }),
};

/** Text as markdown, which may grow. */
export class MarkdownView {
  #element;
  #text = "";
  /** Where the last two blocks begin in the text. */
  #start = 0;
  /** @type {LiveBlock[]} */
  #live = [];
  /** When the next rendering may be, and the timer for it. */
  #nextAt = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #plain = false;

  /** @param {HTMLElement} element whose children it is from now on */
  constructor(element) {
    this.#element = element;
    element.replaceChildren();
  }

  /** What was given, as it was. */
  get text() {
    return this.#text;
  }

  /** Shows `text` in place of what was there. @param {string} text */
  set text(text) {
    if (text !== this.#text) {
      if (!text.startsWith(this.#text)) this.#clear();
      this.#text = text;
    }
    this.flush();
  }

  /** Adds to the text; shows it at once, or soon. @param {string} delta */
  append(delta) {
    this.#text += delta;
    if (this.#timer !== undefined) return;
    const wait = this.#nextAt - performance.now();
    if (wait <= 0) this.flush();
    else this.#timer = setTimeout(() => this.flush(), wait);
  }

  /** Shows all of the text now. */
  flush() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const begun = performance.now();
    if (this.#text.length > MAX_CHARS || !canSanitise()) this.#showPlain();
    else this.#render();
    const now = performance.now();
    this.#nextAt = now + Math.max(MIN_PAUSE_MS, (now - begun) * PAUSE_PER_COST);
  }

  #clear() {
    this.#element.replaceChildren();
    this.#live = [];
    this.#start = 0;
    this.#plain = false;
  }

  #showPlain() {
    if (!this.#plain) this.#clear();
    this.#plain = true;
    morphText(this.#element, this.#text);
  }

  #render() {
    if (this.#plain) this.#clear();
    const tail = this.#text.slice(this.#start);
    const blocks = blocksOf(tail.replace(/\r\n?/g, "\n"));
    blocks.forEach(({ html }, i) => {
      const live = (this.#live[i] ??= { html: "", nodes: [] });
      if (live.html !== html) this.#show(live, html);
    });
    for (const { nodes } of this.#live.splice(blocks.length)) for (const node of nodes) node.remove();
    const nFinal = Math.max(0, blocks.length - LIVE_BLOCKS);
    if (nFinal > 0) {
      this.#live.splice(0, nFinal);
      this.#start += offsetOfLine(tail, blocks[nFinal].line);
    }
  }

  /** @param {LiveBlock} live @param {string} html */
  #show(live, html) {
    const fresh = [...purify.sanitize(html, SANITISER).childNodes];
    const following = this.#live.slice(this.#live.indexOf(live) + 1).find(({ nodes }) => nodes.length > 0);
    const before = following?.nodes[0] ?? null;
    live.nodes = morphAll(this.#element, live.nodes, fresh, before);
    live.html = html;
  }
}

/** Without its policy, or in a browser that it doesn't know, the sanitiser can't be trusted: then text stays text. */
const canSanitise = () => purify.isSupported && (htmlPolicy !== null || !("trustedTypes" in globalThis));

/** Makes `old`, children of `parent`, like `fresh`; gives those that are there then.
 * @param {Node} parent @param {ChildNode[]} old @param {ChildNode[]} fresh @param {ChildNode | null} before
 * @returns {ChildNode[]} */
function morphAll(parent, old, fresh, before) {
  const now = fresh.map((node, i) => {
    const was = old[i];
    if (was && morph(was, node)) return was;
    if (was) was.replaceWith(node);
    else parent.insertBefore(node, before);
    return node;
  });
  for (const node of old.slice(fresh.length)) node.remove();
  return now;
}

/** Makes `was` like `fresh`, if it is of the same kind. @param {ChildNode} was @param {ChildNode} fresh */
function morph(was, fresh) {
  if (was instanceof Text && fresh instanceof Text) {
    setText(was, fresh.data);
    return true;
  }
  if (!(was instanceof Element) || !(fresh instanceof Element) || was.localName !== fresh.localName) return false;
  if (was.attributes.length !== fresh.attributes.length) return false;
  for (const { name, value } of fresh.attributes) if (was.getAttribute(name) !== value) return false;
  morphAll(was, [...was.childNodes], [...fresh.childNodes], null);
  return true;
}

/** @param {HTMLElement} element @param {string} text */
function morphText(element, text) {
  const only = element.firstChild;
  if (only instanceof Text && only === element.lastChild) setText(only, text);
  else element.replaceChildren(text);
}

/** Changes what differs, so that a selection of the rest stays. @param {Text} node @param {string} text */
function setText(node, text) {
  const { data } = node;
  let same = 0;
  if (text.startsWith(data)) same = data.length;
  else while (same < text.length && data[same] === text[same]) same++;
  if (same < data.length || same < text.length) node.replaceData(same, data.length - same, text.slice(same));
}

/** The index at which line `line` of `text` begins, from 0. @param {string} text @param {number} line */
function offsetOfLine(text, line) {
  const ends = /\r\n?|\n/g;
  for (let i = 0; i < line; i++) if (!ends.exec(text)) return text.length;
  return ends.lastIndex;
}
