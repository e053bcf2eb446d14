// Colours for code: comments, strings, numbers and the commonest keywords, by one pattern a family of languages.

import { el } from "./dom.js";

const LONGEST = 50000; // characters

const WORDS =
  "and as assert async await break case catch class const continue def default del do elif else enum except export extends " +
  "extern false False finally fn for from func function global if impl import in interface is lambda let loop match mod mut new nil " +
  "None nonlocal not null of or pass pub public private raise return self static struct super switch then this throw trait True true try " +
  "type typedef undefined use using var void where while with yield SELECT FROM WHERE JOIN ON GROUP ORDER BY INSERT INTO VALUES UPDATE SET " +
  "int float double char bool string unsigned long auto namespace template echo fi done esac kernel device threadgroup";
const KEYWORDS = new Set(WORDS.split(" "));

const HASH = "#[^\\n]*";
const SLASH = "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)";
const DASH = "--[^\\n]*";
const COMMENTS = {
  python: HASH, py: HASH, bash: HASH, sh: HASH, shell: HASH, zsh: HASH, yaml: HASH, yml: HASH, toml: HASH, ruby: HASH, r: HASH, makefile: HASH,
  js: SLASH, javascript: SLASH, ts: SLASH, typescript: SLASH, jsx: SLASH, tsx: SLASH, c: SLASH, cpp: SLASH, "c++": SLASH, java: SLASH,
  rust: SLASH, rs: SLASH, go: SLASH, swift: SLASH, kotlin: SLASH, csharp: SLASH, cs: SLASH, css: "\\/\\*[^]*?(?:\\*\\/|$)", metal: SLASH, php: SLASH,
  sql: DASH, lua: DASH, haskell: DASH, json: null,
};

const STRINGS = `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\\\.|[^"\\\\\\n])*"|'(?:\\\\.|[^'\\\\\\n])*'|\`(?:\\\\.|[^\`\\\\])*\``;
const NUMBERS = "\\b(?:0x[\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b";

// Strings and span elements for `code`.
export function highlight(code, language) {
  const name = language.toLowerCase();
  if (!(name in COMMENTS) || code.length > LONGEST) return [code];
  const comment = COMMENTS[name] ?? "(?!)";
  const pattern = new RegExp(`(?<comment>${comment})|(?<string>${STRINGS})|(?<number>${NUMBERS})|(?<word>[A-Za-z_]\\w*)`, "g");
  const out = [];
  let end = 0;
  for (const match of code.matchAll(pattern)) {
    const { word } = match.groups;
    const kind = word === undefined ? Object.keys(match.groups).find((k) => match.groups[k] !== undefined) : KEYWORDS.has(word) && "keyword";
    if (!kind) continue;
    out.push(code.slice(end, match.index), el("span", { class: `tok-${kind}` }, match[0]));
    end = match.index + match[0].length;
  }
  return [...out, code.slice(end)];
}
