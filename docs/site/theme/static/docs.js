// The documentation's search: every word of the query in a section, the best places first. The index is a file of
// this folder, fetched when the field is first used; nothing is sent anywhere. What is shown is text, never markup.

const ROOT = new URL(document.body.dataset.root || "./", document.baseURI);
const MOST = 12;

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const query = /** @type {HTMLInputElement} */ (byId("query"));
const results = byId("results");
const found = byId("found");

/** [page, anchor, page's title, heading, text]
 * @typedef {[string, string, string, string, string]} Entry */
/** @type {Promise<Entry[]> | undefined} */
let index;

byId("search").hidden = false;
const menu = /** @type {HTMLDetailsElement} */ (byId("menu"));
menu.open = matchMedia("(min-width: 50rem)").matches;

function load() {
  index ??= fetch(new URL("search.json", ROOT)).then((response) => {
    if (!response.ok) throw new Error(`search.json: HTTP status ${response.status}`);
    return response.json();
  });
  return index;
}

/** How good a place is for these words; 0 when one of them is missing. @param {Entry} entry @param {string[]} words */
function score([, , title, heading, text], words) {
  const [inTitle, inHeading, inText] = [title, heading, text].map((part) => part.toLowerCase());
  let sum = 0;
  for (const word of words) {
    const here = (inHeading.includes(word) ? 8 : 0) + (inTitle.includes(word) ? 3 : 0) + (inText.includes(word) ? 1 : 0);
    if (here === 0) return 0;
    sum += here;
  }
  return sum;
}

/** The text around the first of the words. @param {string} text @param {string[]} words */
function excerpt(text, words) {
  const places = words.map((word) => text.toLowerCase().indexOf(word)).filter((at) => at >= 0);
  const start = Math.max(0, Math.min(...places, text.length) - 40);
  return (start > 0 ? "…" : "") + text.slice(start, start + 120) + (start + 120 < text.length ? "…" : "");
}

async function show() {
  const text = query.value.trim().toLowerCase();
  const words = text.split(/\s+/).filter(Boolean);
  if (words.length === 0) return hide();
  let entries;
  try {
    entries = await load();
  } catch (error) {
    index = undefined;
    results.replaceChildren();
    results.hidden = true;
    found.textContent = `The index could not be read: ${error}`;
    found.classList.remove("unseen");
    return;
  }
  if (query.value.trim().toLowerCase() !== text) return; // something else was typed meanwhile
  const best = entries
    .map((entry, place) => ({ entry, place, points: score(entry, words) }))
    .filter(({ points }) => points > 0)
    .sort((a, b) => b.points - a.points || a.place - b.place);
  results.replaceChildren(...best.slice(0, MOST).map(({ entry }) => item(entry, words)));
  if (best.length === 0) results.append(Object.assign(document.createElement("li"), { textContent: "Nothing found." }));
  results.hidden = false;
  found.textContent = `${best.length} found`;
  found.classList.add("unseen");
}

/** @param {Entry} entry @param {string[]} words */
function item([page, anchor, title, heading, text], words) {
  const link = document.createElement("a");
  link.href = new URL(`${page}.html${anchor && `#${anchor}`}`, ROOT).href;
  const name = document.createElement("strong");
  name.textContent = heading === title ? title : `${title}: ${heading}`;
  const part = document.createElement("span");
  part.textContent = excerpt(text, words);
  link.append(name, part);
  const line = document.createElement("li");
  line.append(link);
  return line;
}

function hide() {
  results.hidden = true;
  found.textContent = "";
}

/** Moves among the field and the links of the results. @param {number} by */
function move(by) {
  const links = [query, ...results.querySelectorAll("a")];
  const at = links.indexOf(/** @type {any} */ (document.activeElement));
  links[Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
}

query.addEventListener("input", show);
query.addEventListener("focus", () => query.value && show());
document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof HTMLInputElement;
  const inSearch = event.target instanceof Element && event.target.closest("#search") !== null;
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    query.focus();
  } else if (event.key === "Escape" && inSearch) {
    query.value = "";
    hide();
    query.focus();
  } else if (inSearch && !results.hidden && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Enter" && isTyping) {
    results.querySelector("a")?.click();
  }
});
document.addEventListener("click", (event) => {
  if (!(event.target instanceof Element && event.target.closest("#search"))) hide();
});
