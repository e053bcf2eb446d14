// The sequences the scheduler holds, one row each, with how far they are.

import { el } from "./dom.js";

const STATES = { waiting: "Waiting", prefill: "Prefill", decode: "Decode" };

export class SequenceTable {
  // highlight(spans or null) is called as a row is pointed at or focused.
  constructor(highlight) {
    this.highlight = highlight;
    this.rows = new Map();
    this.body = el("tbody");
    const head = el("tr", {}, ["Sequence", "State", "Progress", "Prompt", "Output", "Blocks"].map((name) => el("th", { scope: "col" }, name)));
    this.empty = el("p", { class: "empty" }, "Idle. Send a message, or several at once from another program.");
    this.more = el("p", { class: "more", hidden: true });
    this.table = el("table", {}, el("caption", { class: "visually-hidden" }, "Running and waiting sequences"), el("thead", {}, head), this.body);
    this.node = el("div", { class: "sequences" }, this.table, this.empty, this.more);
  }

  update(sequences, unseen) {
    const rows = new Map();
    for (const sequence of sequences) {
      const row = this.rows.get(sequence.name) ?? new Row(this.highlight);
      row.update(sequence);
      rows.set(sequence.name, row);
    }
    for (const [name, row] of this.rows) {
      if (rows.has(name)) continue;
      if (row.node.matches(":hover, :focus")) this.highlight(null);
      row.node.remove();
    }
    this.rows = rows;
    [...rows.values()].forEach((row, i) => {
      if (this.body.children[i] !== row.node) this.body.insertBefore(row.node, this.body.children[i] ?? null);
    });
    this.table.hidden = !rows.size;
    this.empty.hidden = rows.size > 0;
    this.more.hidden = unseen <= 0;
    this.more.textContent = `and ${unseen} more waiting`;
  }
}

class Row {
  constructor(highlight) {
    this.spans = [];
    this.parts = Object.fromEntries(["cached", "computed", "pending", "generated", "rest"].map((name) => [name, el("span", { class: name })]));
    this.bar = el("div", { class: "bar", role: "img" }, Object.values(this.parts));
    this.state = el("span", { class: "state" });
    this.name = el("th", { scope: "row" });
    this.prompt = el("td", { class: "number" });
    this.output = el("td", { class: "number" });
    this.blocks = el("td", { class: "number" });
    this.node = el("tr", { tabindex: "0" }, this.name, el("td", {}, this.state), el("td", { class: "progress" }, this.bar), this.prompt, this.output, this.blocks);
    for (const event of ["pointerenter", "focus"]) this.node.addEventListener(event, () => highlight(this.spans));
    for (const event of ["pointerleave", "blur"]) this.node.addEventListener(event, () => highlight(null));
  }

  update({ name, state, prompt_tokens, cached_tokens, computed_tokens, generated_tokens, max_tokens, spans }) {
    this.spans.splice(0, Infinity, ...spans); // the same array: what is highlighted grows with it
    const done = Math.min(computed_tokens, prompt_tokens);
    const cached = Math.min(cached_tokens, done);
    const widths = {
      cached,
      computed: done - cached,
      pending: prompt_tokens - done,
      generated: generated_tokens,
      rest: Math.max((max_tokens ?? generated_tokens) - generated_tokens, 0),
    };
    for (const [part, width] of Object.entries(widths)) this.parts[part].style.flexGrow = width;
    this.name.textContent = name;
    this.state.textContent = STATES[state];
    this.state.className = `state ${state}`;
    this.prompt.textContent = done < prompt_tokens ? `${done}/${prompt_tokens}` : prompt_tokens;
    this.output.textContent = max_tokens === null ? generated_tokens : `${generated_tokens}/${max_tokens}`;
    this.blocks.textContent = spans.reduce((sum, n, i) => sum + (i % 2 ? n : 0), 0);
    this.bar.setAttribute("aria-label", `${cached} prompt tokens cached, ${done - cached} computed, ${prompt_tokens - done} to do, ${generated_tokens} generated`);
  }
}
