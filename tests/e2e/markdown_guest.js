// What the page has for test_markdown.py: `make`, a view; `pwned`, what an attack would do, which leaves a mark in
// `hits`; `violations`, what the policy had to stop; `wrong`, what in an element is neither text nor one of the few
// things that markdown becomes.

const { MarkdownView } = await import("./web/markdown-view.js");

globalThis.hits = [];
globalThis.pwned = () => hits.push("pwned");
globalThis.violations = [];
addEventListener("securitypolicyviolation", ({ violatedDirective, sample }) =>
  violations.push(`${violatedDirective} ${sample}`),
);

globalThis.make = (parent = document.body) => {
  const element = document.createElement("div");
  parent.append(element);
  return { element, view: new MarkdownView(element) };
};

const XHTML = "http://www.w3.org/1999/xhtml";
const TAGS = new Set(
  "p h3 h4 h5 h6 ul ol li blockquote pre code em strong s a br hr table thead tbody tr th td div".split(" "),
);
const ATTRIBUTES = {
  a: ["href", "target", "rel"],
  ol: ["start"],
  th: ["align"],
  td: ["align"],
  div: ["tabindex"],
};

globalThis.wrong = (element) => {
  const found = [];
  for (const each of element.querySelectorAll("*")) {
    const name = each.localName;
    if (!TAGS.has(name) || each.namespaceURI !== XHTML) found.push(name);
    for (const { name: attribute } of each.attributes) {
      if (!ATTRIBUTES[name]?.includes(attribute)) found.push(`${name} ${attribute}`);
    }
    if (name !== "a" || each.attributes.length === 0) continue;
    const isSafe = /^(https?|mailto):$/.test(each.protocol) && each.origin !== location.origin;
    if (!isSafe) found.push(each.href);
    if (each.rel !== "noopener noreferrer nofollow" || each.target !== "_blank") found.push("a without rel");
  }
  return found;
};
