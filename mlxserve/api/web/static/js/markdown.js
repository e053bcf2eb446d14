// A small Markdown for model answers: headings, lists, quotes, tables, fenced code. It gives DOM nodes; text of the
// model is never parsed as markup.

import { copyButton, el } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";

const DEEPEST = 16; // lists and quotes within each other; what is deeper is shown as it is

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

// The top-level blocks of a text, as [{type, lines, ...}]. What came before the last one can no longer change.
export function blocks(text) {
  return scan(text.replace(/\t/g, "    ").split(/\r\n|\n|\r/));
}

function scan(lines) {
  const out = [];
  for (let i = 0; i < lines.length; ) {
    if (!lines[i].trim()) {
      i++;
      continue;
    }
    const block = next(lines, i);
    out.push(block);
    i = block.end;
  }
  return out;
}

function next(lines, i) {
  const line = lines[i];
  if (FENCE.test(line)) return fence(lines, i);
  if (HEADING.test(line)) return { type: "heading", lines: [line], end: i + 1 };
  if (RULE.test(line)) return { type: "rule", lines: [line], end: i + 1 };
  if (QUOTE.test(line)) return run("quote", lines, i, (l) => QUOTE.test(l));
  if (ITEM.test(line)) return list(lines, i);
  if (isTable(lines, i)) return run("table", lines, i, (l) => l.includes("|"));
  return run("paragraph", lines, i, (l, j) => l.trim() && (j === i || !startsBlock(lines, j)));
}

function startsBlock(lines, i) {
  const line = lines[i];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) || isTable(lines, i);
}

function isTable(lines, i) {
  return lines[i].includes("|") && i + 1 < lines.length && lines[i + 1].includes("-") && DELIMITERS.test(lines[i + 1]);
}

function run(type, lines, i, belongs) {
  let end = i + 1;
  while (end < lines.length && belongs(lines[end], end)) end++;
  return { type, lines: lines.slice(i, end), end };
}

function fence(lines, i) {
  const [, marks, language] = FENCE.exec(lines[i]);
  const close = new RegExp(`^ {0,3}\\${marks[0]}{${marks.length},}\\s*$`);
  let end = i + 1;
  while (end < lines.length && !close.test(lines[end])) end++;
  const indent = lines[i].search(/\S/);
  const body = lines.slice(i + 1, end).map((line) => line.replace(new RegExp(`^ {0,${indent}}`), ""));
  return { type: "code", language, body, lines: lines.slice(i, end + 1), end: Math.min(end + 1, lines.length) };
}

function list(lines, i) {
  const [, indent, marker] = ITEM.exec(lines[i]);
  const items = [];
  const ordered = /\d/.test(marker);
  let end = i;
  let width = 0; // columns of the current item's text
  for (; end < lines.length; end++) {
    const line = lines[end];
    const blank = !line.trim();
    const item = ITEM.exec(line);
    if (item && item[1].length < indent.length + 2 && (!items.length || item[1].length < width)) {
      if (/\d/.test(item[2]) !== ordered || RULE.test(line)) break;
      width = item[0].trimEnd().length + 1;
      items.push([line.slice(item[0].length)]);
    } else if (blank || line.search(/\S/) >= Math.min(width, indent.length + 2)) {
      items.at(-1).push(line.slice(Math.min(width, Math.max(line.search(/\S/), 0))));
    } else if (lines[end - 1].trim() && !startsBlock(lines, end)) {
      items.at(-1).push(line.trim()); // a lazy continuation of the paragraph
    } else break;
  }
  while (end > i && !lines[end - 1].trim()) {
    end--;
    items.at(-1).pop();
  }
  return { type: "list", ordered, start: parseInt(marker, 10), items, lines: lines.slice(i, end), end };
}

const RENDER = {
  paragraph: (b) => el("p", {}, inline(b.lines.map((l) => l.trim()).join("\n"))),
  heading: (b) => {
    const [, marks, text] = HEADING.exec(b.lines[0]);
    return el(`h${marks.length}`, {}, inline(text));
  },
  rule: () => el("hr"),
  quote: (b, depth) => el("blockquote", {}, render(scan(b.lines.map((l) => l.replace(QUOTE, ""))), depth)),
  list: (b, depth) =>
    el(b.ordered ? "ol" : "ul", { start: b.ordered && b.start !== 1 ? b.start : null }, b.items.map((item) => listItem(item, depth))),
  table,
  code: (b) => codeBlock(b.body.join("\n"), b.language),
};

function listItem(lines, depth) {
  const inner = scan(lines);
  const loose = inner.filter((b) => b.type === "paragraph").length > 1;
  const nodes = inner.flatMap((b) => (b.type === "paragraph" && !loose ? [...RENDER.paragraph(b).childNodes] : render([b], depth)));
  return el("li", {}, nodes);
}

function cells(line) {
  const inner = line.trim().replace(/^\||(?<!\\)\|$/g, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(block) {
  const [head, rule, ...rows] = block.lines;
  const align = cells(rule).map((c) => (/^:-+:$/.test(c) ? "center" : /-:$/.test(c) ? "right" : null));
  const row = (tag, line) => el("tr", {}, cells(line).map((c, i) => el(tag, { class: align[i] }, inline(c))));
  const node = el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, rows.map((line) => row("td", line))));
  // A wide table scrolls by itself; a keyboard must be able to reach it.
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, node);
}

function codeBlock(code, language) {
  const bar = el("figcaption", {}, el("span", {}, language || "text"), copyButton(() => code));
  const pre = el("pre", { tabindex: "0" }, el("code", {}, highlight(code, language)));
  return el("figure", { class: "code" }, bar, pre);
}

// DOM nodes of blocks.
export function render(list, depth = 0) {
  if (depth > DEEPEST) return list.map((block) => el("p", {}, block.lines.join("\n")));
  return list.map((block) => RENDER[block.type](block, depth + 1));
}

// Keeps `element` showing a growing text; blocks that are done are left as they are, with any selection in them.
export class LiveMarkdown {
  constructor(element) {
    this.element = element;
    this.sources = [];
  }

  update(text) {
    const list = blocks(text);
    const sources = list.map((block) => block.lines.join("\n"));
    let same = 0;
    while (same < sources.length && sources[same] === this.sources[same]) same++;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...render(list.slice(same)));
    this.sources = sources;
  }
}
