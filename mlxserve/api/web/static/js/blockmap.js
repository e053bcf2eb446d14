// The KV pool as a map: one cell a block, in the order of their numbers.

import { el } from "./dom.js";

export const KINDS = ["used", "shared", "cached", "free"];
const NAMES = { used: "in use", shared: "shared", cached: "cached", free: "free" };
const HELP = {
  used: "held by one sequence",
  shared: "held by several sequences at once",
  cached: "held by none, kept in case a prompt begins the same way",
  free: "empty",
};
const FADE_MS = 700; // how long a block that changed stays bright

// A refcount byte: 0 free, 255 held by nobody but matchable, else the number of holders.
export function kindOf(byte) {
  return byte === 0 ? "free" : byte === 255 ? "cached" : byte === 1 ? "used" : "shared";
}

export class BlockMap {
  constructor() {
    this.canvas = el("canvas", { role: "img", "aria-label": "KV pool" });
    this.detail = el("span");
    this.counts = {};
    this.swatches = {};
    this.legend = el("ul", { class: "legend" }, KINDS.map((kind) => this.legendItem(kind)));
    this.node = el("div", { class: "blockmap" }, this.canvas, el("div", { class: "foot" }, this.legend, this.detail));
    this.blocks = new Uint8Array();
    this.changedAt = new Float64Array();
    this.highlighted = null; // spans of a sequence
    this.sequences = [];
    this.frame = 0;
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    new ResizeObserver(() => this.redraw()).observe(this.node);
    document.addEventListener("themechange", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => (this.detail.textContent = ""));
  }

  legendItem(kind) {
    this.counts[kind] = el("b", {}, "0");
    this.swatches[kind] = el("span", { class: `swatch ${kind}` });
    return el("li", { title: HELP[kind] }, this.swatches[kind], this.counts[kind], ` ${NAMES[kind]}`);
  }

  update(blocks, sequences) {
    const now = performance.now();
    if (blocks.length !== this.blocks.length) this.changedAt = new Float64Array(blocks.length).fill(-FADE_MS);
    else if (!this.calm.matches) {
      for (let i = 0; i < blocks.length; i++) if (kindOf(blocks[i]) !== kindOf(this.blocks[i])) this.changedAt[i] = now;
    }
    this.blocks = blocks;
    this.sequences = sequences;
    const counts = { used: 0, shared: 0, cached: 0, free: 0 };
    for (const byte of blocks) counts[kindOf(byte)]++;
    for (const kind of KINDS) this.counts[kind].textContent = counts[kind].toLocaleString();
    const words = KINDS.map((kind) => `${counts[kind]} ${NAMES[kind]}`).join(", ");
    this.canvas.setAttribute("aria-label", `KV pool of ${blocks.length} blocks: ${words}`);
    this.redraw();
  }

  highlight(spans) {
    this.highlighted = spans;
    this.redraw();
  }

  // Cells as large as the room allows, down to 2 px.
  layout() {
    const width = this.node.clientWidth;
    const room = Math.max(180, Math.min(380, width * 0.6));
    let cell = 16;
    while (cell > 2 && Math.ceil(this.blocks.length / Math.floor(width / cell)) * cell > room) cell -= cell > 6 ? 1 : 0.5;
    const columns = Math.max(1, Math.min(Math.floor(width / cell), this.blocks.length));
    if (cell > 4) cell = Math.min(width / columns, 18); // the full width; smaller cells stay on whole pixels
    return { cell, columns, rows: Math.ceil(this.blocks.length / columns) };
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.node.clientWidth || !this.blocks.length) return;
    const { cell, columns, rows } = (this.grid = this.layout());
    const ratio = devicePixelRatio;
    const [width, height] = [columns * cell, rows * cell];
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const colours = Object.fromEntries(KINDS.map((kind) => [kind, getComputedStyle(this.swatches[kind]).backgroundColor]));
    const ink = getComputedStyle(this.node).color;
    const gap = cell > 8 ? 2 : cell > 4 ? 1 : 0.5;
    const marked = this.marked();
    const now = performance.now();
    let fading = false;
    for (let i = 0; i < this.blocks.length; i++) {
      const [x, y] = [(i % columns) * cell, Math.floor(i / columns) * cell];
      context.globalAlpha = marked && !marked[i] ? 0.28 : 1;
      context.fillStyle = colours[kindOf(this.blocks[i])];
      box(context, x, y, cell - gap);
      const age = now - this.changedAt[i];
      if (age < FADE_MS) {
        fading = true;
        context.globalAlpha = 0.45 * (1 - age / FADE_MS);
        context.fillStyle = ink;
        box(context, x, y, cell - gap);
      }
    }
    context.globalAlpha = 1;
    if (fading) this.redraw();
  }

  marked() {
    if (!this.highlighted) return null;
    const marked = new Uint8Array(this.blocks.length);
    for (let i = 0; i < this.highlighted.length; i += 2) marked.fill(1, this.highlighted[i], this.highlighted[i] + this.highlighted[i + 1]);
    return marked;
  }

  point({ offsetX, offsetY }) {
    const { cell, columns } = this.grid;
    const block = Math.floor(offsetY / cell) * columns + Math.floor(offsetX / cell);
    if (offsetX >= columns * cell || block >= this.blocks.length) return;
    const holders = this.sequences.filter(({ spans }) => spans.some((first, i) => i % 2 === 0 && block >= first && block < first + spans[i + 1]));
    const who = holders.length ? `: ${holders.map((s) => s.name).join(", ")}` : "";
    this.detail.textContent = `Block ${block}, ${NAMES[kindOf(this.blocks[block])]}${who}`;
  }
}

function box(context, x, y, size) {
  if (size < 5) return context.fillRect(x, y, size, size);
  context.beginPath();
  context.roundRect(x, y, size, size, Math.min(3, size / 4));
  context.fill();
}
