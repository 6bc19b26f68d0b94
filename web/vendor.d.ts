// What we use of the scripts in the site's vendor/, which the build puts there.

declare module "*/vendor/markdown-it.mjs" {
  export interface Token {
    type: string;
    tag: string;
    attrs: [string, string][] | null;
    map: [number, number] | null;
    nesting: 1 | 0 | -1;
    level: number;
    content: string;
    children: Token[] | null;
    attrGet(name: string): string | null;
    attrSet(name: string, value: string): void;
  }
  export type Rule = (tokens: Token[], index: number, options: object, env: object, renderer: Renderer) => string;
  export interface Renderer {
    rules: Record<string, Rule | undefined>;
    render(tokens: Token[], options: object, env: object): string;
    renderToken(tokens: Token[], index: number, options: object): string;
  }
  export default class MarkdownIt {
    constructor(options: { html: boolean; breaks: boolean; linkify: boolean; typographer: boolean });
    options: object;
    renderer: Renderer;
    utils: { escapeHtml(text: string): string };
    validateLink: (url: string) => boolean;
    disable(rules: string[]): this;
    parse(text: string, env: object): Token[];
  }
}

declare module "*/vendor/dompurify.mjs" {
  const purify: {
    isSupported: boolean;
    sanitize(html: string, config: object): DocumentFragment;
  };
  export default purify;
}
