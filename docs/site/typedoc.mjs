// TypeDoc's plugin: what it needs to be told of modules whose types are JSDoc.
//
// - The text before `@typedef` describes the type.
// - What is no page's to use is left out: HIDDEN, an element's callbacks, and what is marked @internal.
// - A page's title is its module's path, and what is empty has no heading.

import { Comment, Converter, ReflectionKind } from "typedoc";
import { MarkdownPageEvent } from "typedoc-plugin-markdown";
import ts from "typescript";

const HIDDEN = new Set([
  ...["client.Channels", "client.Life", "client.RANGES", "client.ERRORS", "client.Relayed", "client.Prepared", "client.prepare"],
  ...["slm2-chat.Slm2Chat.constructor", "slm2-chat.Slm2Chat.observedAttributes", "slm2-chat.Engine", "slm2-chat.Slm"],
  ...["prompt-api.LanguageModel.constructor", "prompt-api.Engine", "prompt-api.Setup", "prompt-api.Turn"],
  ...["markdown-view.LiveBlock", "stored.Store", "openai.Slm", "prompt-api.Slm"],
]);
const CALLBACK = /^(connected|disconnected|attributeChanged)Callback$/;
const EMPTY = /^#+ Type Parameters\n\n\| Type Parameter \|\n\| -+ \|\n\n?|^#+ Implements\n\n(?=#)/gm;

/** @param {import("typedoc").Application} app */
export function load(app) {
  app.converter.on(Converter.EVENT_CREATE_DECLARATION, (context, reflection) => {
    const tag = context.getSymbolFromReflection(reflection)?.declarations?.find(ts.isJSDocTypedefTag);
    const text = tag && ts.isJSDoc(tag.parent) ? ts.getTextOfJSDocComment(tag.parent.comment) : undefined;
    if (text && !reflection.comment?.hasVisibleComponent()) reflection.comment = new Comment([{ kind: "text", text }]);
  });
  app.converter.on(Converter.EVENT_RESOLVE_BEGIN, (context) => {
    const found = new Set();
    for (const reflection of Object.values(context.project.reflections)) {
      const name = reflection.getFullName();
      if (!HIDDEN.has(name) && !CALLBACK.test(reflection.name)) continue;
      found.add(name);
      context.project.removeReflection(reflection);
    }
    for (const name of HIDDEN) if (!found.has(name)) app.logger.error(`docs/site/typedoc.mjs: there is no ${name} to hide`);
  });
  app.renderer.on(MarkdownPageEvent.END, (page) => {
    const text = (page.contents ?? "").replace(EMPTY, "");
    const isModule = page.model.kindOf?.(ReflectionKind.Module);
    page.contents = isModule ? text.replace(/^# .*$/m, `# web/${page.model.name}.js`) : text;
  });
}
