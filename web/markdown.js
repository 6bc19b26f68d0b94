// Markdown: a model's text as HTML, block by block. The text is a stranger's: nothing in it is HTML, no link leads
// anywhere but to http, https and mailto, and nothing is fetched because it was written. What comes out is still not
// believed: markdown-view.js puts it through a sanitiser.
//
// Beside CommonMark's there are tables and strikethrough. A line's end is one: models write verses that way. Left out
// are HTML, which is shown as it was written, and reference definitions, as these would let the end of a text change
// its beginning.

import MarkdownIt from "../vendor/markdown-it.mjs";

/** @typedef {import("../vendor/markdown-it.mjs").Token} Token */
/** @typedef {import("../vendor/markdown-it.mjs").Rule} Rule */
/** A block at the top level: the line of the text that it begins at, from 0, and its HTML.
 * @typedef {{line: number, html: string}} Block */

/** Where a link may lead. The sanitiser asks again. */
export const SAFE_URL = /^(?:https?:\/\/|mailto:)/i;

// A reply's headings stand below the page's own.
const HEADING_OFFSET = 2;

const markdown = new MarkdownIt({ html: false, breaks: true, linkify: false, typographer: false });
markdown.disable(["reference"]);
markdown.validateLink = (/** @type {string} */ url) => SAFE_URL.test(url.trim());

const { escapeHtml } = markdown.utils;

/** @type {Record<string, Rule>} */
const RULES = {
  link_open(tokens, index, options, env, renderer) {
    tokens[index].attrs = linkAttributes(tokens[index].attrGet("href") ?? "");
    return renderer.renderToken(tokens, index, options);
  },
  // An image is shown as a link to it: to load it would tell its server who reads what.
  image(tokens, index) {
    const url = tokens[index].attrGet("src") ?? "";
    const text = escapeHtml(tokens[index].content || url);
    if (!SAFE_URL.test(url) || isInLink(tokens, index)) return text;
    const attributes = linkAttributes(url).map(([name, value]) => `${name}="${escapeHtml(value)}"`);
    return `<a ${attributes.join(" ")}>${text}</a>`;
  },
  heading_open: (tokens, index) => `<h${levelOf(tokens[index])}>`,
  heading_close: (tokens, index) => `</h${levelOf(tokens[index])}>`,
  th_open: openCell,
  td_open: openCell,
  fence: codeBlock,
  code_block: codeBlock,
  // Wider than the column, it scrolls by itself: by keyboard too.
  table_open: () => '<div tabindex="0"><table>',
  table_close: () => "</table></div>",
};
Object.assign(markdown.renderer.rules, RULES);

/** The blocks of `text`, whose lines end in \n.
 *
 * Blocks don't look back: those of a text and those of its beginning are the same but for the last two.
 * @param {string} text @returns {Block[]} */
export function blocksOf(text) {
  /** @type {Block[]} */
  const blocks = [];
  const env = {};
  const tokens = markdown.parse(text, env);
  for (let start = 0, end = 0; start < tokens.length; start = end) {
    end = start + 1;
    if (tokens[start].nesting === 1) {
      while (tokens[end].level !== 0 || tokens[end].nesting !== -1) end++;
      end++;
    }
    const html = markdown.renderer.render(tokens.slice(start, end), markdown.options, env).trimEnd();
    blocks.push({ line: tokens[start].map?.[0] ?? 0, html });
  }
  return blocks;
}

/** @type {Rule} A style attribute is none under a strict policy. */
function openCell(tokens, index) {
  const align = /(?:left|right|center)$/.exec(tokens[index].attrGet("style") ?? "")?.[0];
  return `<${tokens[index].tag}${align ? ` align="${align}"` : ""}>`;
}

/** @type {Rule} The info string is of no use here. */
function codeBlock(tokens, index) {
  return `<pre><code>${escapeHtml(tokens[index].content)}</code></pre>`;
}

/** @param {Token} heading */
const levelOf = ({ tag }) => Math.min(6, Number(tag.slice(1)) + HEADING_OFFSET);

/** None for a link that leads nowhere. @param {string} url @returns {[string, string][]} */
const linkAttributes = (url) =>
  SAFE_URL.test(url)
    ? [
        ["href", url],
        ["target", "_blank"],
        ["rel", "noopener noreferrer nofollow"],
      ]
    : [];

/** @param {Token[]} tokens @param {number} index */
function isInLink(tokens, index) {
  let depth = 0;
  for (const { type } of tokens.slice(0, index)) depth += Number(type === "link_open") - Number(type === "link_close");
  return depth > 0;
}
