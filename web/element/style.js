// The element's own style. `all: initial` keeps out what is inherited from the page; what a page may set are the custom
// properties named --slm2-…, the parts, and the element's own box.

const TEXT = `
:host {
  display: block;
  contain: content;
  --accent: var(--slm2-accent, light-dark(#1f5c4d, #8accb1));
  --on-accent: var(--slm2-on-accent, light-dark(#faf7f1, #12201b));
  --paper: var(--slm2-background, light-dark(#faf7f1, #151512));
  --raised: var(--slm2-raised, light-dark(#fffdf9, #1d1d19));
  --ink: var(--slm2-color, light-dark(#22201c, #e9e3d6));
  --soft: var(--slm2-muted, light-dark(#655f54, #a29b8b));
  --line: var(--slm2-border, light-dark(#e1dacb, #33312a));
  --red: var(--slm2-error, light-dark(#96301f, #f2a593));
  --radius: var(--slm2-radius, 0.75rem);
  --mono: var(--slm2-mono, ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace);
  block-size: var(--slm2-height, 32rem);
}
:host([theme="light"]) { color-scheme: light; }
:host([theme="dark"]) { color-scheme: dark; }
:host([theme="auto"]) { color-scheme: light dark; }
:host([hidden]) { display: none; }
[hidden] { display: none !important; }
.chat, .announcer {
  all: initial;
  box-sizing: border-box;
  color-scheme: inherit;
  pointer-events: inherit;
  visibility: inherit;
  font: var(--slm2-font-size, 1rem)/1.5 var(--slm2-font, system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif);
  color: var(--ink);
}
* { box-sizing: border-box; }
.chat {
  display: grid;
  grid-template-rows: auto minmax(0, 1fr) auto auto auto auto;
  grid-template-columns: minmax(0, 1fr);
  block-size: 100%;
  overflow: hidden;
  border: 1px solid var(--line);
  border-radius: var(--radius);
  background: var(--paper);
}
.log {
  grid-row: 2;
  display: flex;
  flex-direction: column;
  gap: var(--slm2-gap, 0.75rem);
  padding: 1rem;
  overflow-y: auto;
  overscroll-behavior: contain;
  scroll-behavior: auto;
}
.log:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
.message {
  max-inline-size: min(40rem, 92%);
  padding: 0.5rem 0.875rem;
  border: 1px solid var(--line);
  border-radius: var(--radius);
  background: var(--raised);
  overflow-wrap: anywhere;
}
.user { align-self: flex-end; border-color: var(--accent); background: var(--accent); color: var(--on-accent); white-space: pre-wrap; unicode-bidi: plaintext; }
.assistant, .greeting { align-self: flex-start; }
.dropped .text { color: var(--soft); }
.failed { padding: 0; border: 0; background: none; }
.failed > .text:not(:empty) { margin-block-end: 0.5rem; }
.meta { margin: 0.25rem 0 0; color: var(--soft); font-size: 0.8125em; }
.unseen { position: absolute; inline-size: 1px; block-size: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.text > * { margin: 0 0 0.75em; unicode-bidi: plaintext; text-align: start; }
.text > :last-child { margin-block-end: 0; }
.text :is(ul, ol) { margin-block: 0 0.75em; padding-inline-start: 1.5em; }
.text blockquote { margin-inline: 0; padding-inline-start: 0.875em; border-inline-start: 0.1875rem solid var(--line); }
.text :is(h3, h4, h5, h6) { font-size: 1em; }
.text a { color: var(--accent); }
.text code { font: 0.875em/1.5 var(--mono); }
.text pre { padding: 0.5rem 0.75rem; border: 1px solid var(--line); border-radius: calc(var(--radius) / 2); background: var(--paper); white-space: pre-wrap; }
.text > div { overflow-x: auto; }
.text table { border-collapse: collapse; font-size: 0.9375em; }
.text :is(th, td) { padding: 0.25em 0.625em; border: 1px solid var(--line); }
.text :is(th, td):not([align]) { text-align: start; }
.assistant[aria-busy="true"] .text:empty::after,
.assistant[aria-busy="true"] .text > :last-child:not(ul, ol, pre, div, blockquote)::after {
  display: inline-block;
  inline-size: 0.5em;
  block-size: 0.9em;
  margin-inline-start: 0.125em;
  background: var(--accent);
  content: "";
  vertical-align: -0.1em;
  animation: blink 1.1s steps(2, jump-none) infinite;
}
@keyframes blink { to { opacity: 0.15; } }
details { margin-block-end: 0.5em; color: var(--soft); font-size: 0.875em; white-space: pre-wrap; }
summary { cursor: pointer; }
.problem .error { margin: 0 1rem 0.5rem; }
.error { padding: 0.625rem 0.875rem; border: 1px solid var(--red); border-radius: var(--radius); overflow-wrap: anywhere; }
.error p { margin: 0 0 0.375rem; }
.error .said { color: var(--soft); font-size: 0.875em; }
.error code { font: 0.8125em/1.5 var(--mono); color: var(--red); }
.status { display: flex; align-items: center; gap: 0.75rem; min-block-size: 1.75rem; padding: 0 1rem; color: var(--soft); font-size: 0.8125em; }
.status span { flex: 1; min-inline-size: 0; }
progress { flex: 0 1 9rem; min-inline-size: 3rem; block-size: 0.375rem; accent-color: var(--accent); }
form { display: flex; gap: 0.5rem; align-items: flex-end; padding: 0.5rem 1rem 0.75rem; }
textarea, button { font: inherit; color: inherit; }
textarea {
  flex: 1;
  min-inline-size: 0;
  max-block-size: 8rem;
  padding: 0.5rem 0.75rem;
  border: 1px solid var(--line);
  border-radius: calc(var(--radius) * 0.75);
  background: var(--raised);
  resize: none;
  unicode-bidi: plaintext;
  text-align: start;
}
textarea::placeholder { color: var(--soft); opacity: 1; }
button { min-block-size: 2.5rem; padding: 0.5rem 0.875rem; border: 1px solid var(--line); border-radius: calc(var(--radius) * 0.75); background: var(--raised); cursor: pointer; }
.primary { border-color: var(--accent); background: var(--accent); color: var(--on-accent); font-weight: 600; }
.quiet { min-block-size: 1.5rem; padding: 0 0.5rem; }
:is(textarea, button, a, summary):focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; } }
@media (forced-colors: active) { .user { border: 2px solid; } }
`;

/** @type {CSSStyleSheet | null} */
let sheet = null;

/** The style sheet, one for all elements: no style in the markup, so a strict policy is content. */
export function styleSheet() {
  if (!sheet) {
    sheet = new CSSStyleSheet();
    sheet.replaceSync(TEXT);
  }
  return sheet;
}
