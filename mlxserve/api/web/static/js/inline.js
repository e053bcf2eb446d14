// Markdown within a paragraph: emphasis, code, links. Gives DOM nodes made of text, never markup.

import { el } from "./dom.js";

const LONGEST = 20000; // characters; beyond that a paragraph is shown as it is, so that no pattern can run for long
const DEEPEST = 16; // emphasis within emphasis
const SAFE = /^(https?:|mailto:)/i;

const RULES = [
  { pattern: /\\([!-/:-@[-`{-~])/, node: (m) => m[1] },
  { pattern: /(?<!`)(`+)(?!`)([^]*?[^`])\1(?!`)/, node: (m) => el("code", {}, m[2].replace(/^ (.+) $/, "$1")) },
  { pattern: /!?\[([^\]\n]*)\]\(\s*<?([^\s()<>]+(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+["'][^\n]*?["'])?\s*\)/, node: (m, depth) => link(m[2], inline(m[1] || m[2], depth)) },
  { pattern: /<(https?:\/\/[^\s<>]+)>/, node: (m) => link(m[1], [m[1]]) },
  { pattern: /\bhttps?:\/\/[^\s<>()[\]"'`]*[^\s<>()[\]"'`.,;:!?*_]/, node: (m) => link(m[0], [m[0]]) },
  { pattern: /\*\*(?=\S)([^]*?\S)\*\*(?!\*)/, node: (m, depth) => el("strong", {}, inline(m[1], depth)) },
  { pattern: /(?<![\w_])__(?=\S)([^]*?\S)__(?![\w_])/, node: (m, depth) => el("strong", {}, inline(m[1], depth)) },
  { pattern: /~~(?=\S)([^]*?\S)~~/, node: (m, depth) => el("del", {}, inline(m[1], depth)) },
  { pattern: /\*(?![\s*])([^]*?[^\s*])\*(?!\*)/, node: (m, depth) => el("em", {}, inline(m[1], depth)) },
  { pattern: /(?<![\w_])_(?![\s_])([^]*?[^\s_])_(?![\w_])/, node: (m, depth) => el("em", {}, inline(m[1], depth)) },
];

// Nodes and strings for a stretch of text.
export function inline(text, depth = 0) {
  if (text.length > LONGEST || depth > DEEPEST) return [text];
  const out = [];
  let rest = text;
  const found = RULES.map(() => undefined); // each rule's next match in `rest`, kept until the text has moved past it
  let offset = 0;
  const offsets = RULES.map(() => 0);
  while (rest) {
    let best = -1;
    for (let i = 0; i < RULES.length; i++) {
      if (found[i] === undefined || (found[i] && offsets[i] + found[i].index < offset)) {
        found[i] = RULES[i].pattern.exec(rest);
        offsets[i] = offset;
      }
      if (found[i] && (best < 0 || offsets[i] + found[i].index < offsets[best] + found[best].index)) best = i;
    }
    if (best < 0) break;
    const start = offsets[best] + found[best].index - offset;
    if (start) out.push(rest.slice(0, start));
    out.push(RULES[best].node(found[best], depth + 1));
    rest = rest.slice(start + found[best][0].length);
    offset += start + found[best][0].length;
  }
  if (rest) out.push(rest);
  return out;
}

function link(address, children) {
  if (!SAFE.test(address)) return el("span", {}, children);
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
