// The Engine view: what the scheduler holds right now, drawn from the live snapshots.

import { BlockMap } from "./blockmap.js";
import { Chart } from "./chart.js";
import { byId, el } from "./dom.js";
import { Live } from "./live.js";
import { SequenceTable } from "./sequences.js";

const ms = (value) => (value === null ? "–" : value < 1000 ? `${value < 100 ? value.toFixed(1) : Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`);
const count = (value) => value.toLocaleString();

// [label, explanation, value(stats), second line(stats)]
const TILES = [
  ["Tokens/s", "generated, over the last ten seconds", (s) => count(Math.round(s.tokens_per_sec)), (s) => `${count(s.decode_tokens_total)} in all`],
  ["Running", "sequences in the current batch", (s) => count(s.requests_running), (s) => `${count(s.queue_depth)} waiting`],
  ["First token", "from receiving a request to its first token, median", (s) => ms(s.ttft_ms_p50), (s) => `p95 ${ms(s.ttft_ms_p95)}`],
  ["Each token", "between two tokens of one answer, median", (s) => ms(s.tpot_ms_p50), (s) => `p95 ${ms(s.tpot_ms_p95)}`],
  ["Prefix cache", "share of all prompt tokens that needed no computing", savedShare, (s) => `${count(s.prefix_tokens_saved)} tokens, ${count(s.prefix_cache_hits)} hits`],
  ["Requests", "since the server started", (s) => count(s.requests_total), (s) => `${count(s.errors_total)} failed, ${count(s.preemptions_total)} preempted`],
];

function savedShare({ prefix_tokens_saved: saved, prefill_tokens_total: computed }) {
  return saved + computed ? `${Math.round((100 * saved) / (saved + computed))}%` : "–";
}

export class Engine {
  constructor() {
    this.live = new Live({ model: (m) => this.showModel(m), snapshot: (s, samples) => this.show(s, samples), down: (m) => this.showDown(m) });
    this.map = new BlockMap();
    this.table = new SequenceTable((spans) => this.map.highlight(spans));
    this.speed = new Chart({ title: "Tokens per second", unit: "tokens/s", series: [{ key: "decode", label: "decode", filled: true }, { key: "prefill", label: "prefill" }] });
    this.batch = new Chart({ title: "Batch", unit: "sequences", whole: true, series: [{ key: "batch", label: "running", filled: true }, { key: "waiting", label: "waiting" }] });
    this.tiles = TILES.map(([label, help]) => ({ value: el("dd", {}, "–"), more: el("dd", { class: "more" }), label: el("dt", { title: help }, label) }));
    this.about = el("p", { class: "about" }, "Connecting…");
    this.pool = el("span", { class: "sub" });
    this.down = el("p", { class: "notice error", role: "status", hidden: true });
    byId("engine").append(
      el("header", {}, el("h2", {}, "Engine"), this.about),
      this.down,
      el("dl", { class: "tiles" }, this.tiles.map(({ label, value, more }) => el("div", {}, label, value, more))),
      section("pool", ["KV pool", this.pool], this.map.node),
      section("charts", null, this.speed.node, this.batch.node),
      section("list", ["Sequences"], this.table.node),
    );
  }

  setVisible(visible) {
    this.live.setWanted(visible);
  }

  restart() {
    this.live.stop();
    this.live.refresh();
  }

  showModel({ name, quantization, backend, dtype, max_model_len, block_size, num_blocks, max_num_seqs }) {
    const weights = quantization === "none" ? dtype : `${quantization} weights, ${dtype}`;
    this.about.textContent = `${name} on ${backend}, ${weights}. Context ${count(max_model_len)} tokens, up to ${max_num_seqs} sequences at once.`;
    this.pool.textContent = `${count(num_blocks)} blocks of ${block_size} tokens`;
  }

  show({ stats, running, waiting, blocks }, samples) {
    this.down.hidden = true;
    TILES.forEach(([, , value, more], i) => {
      this.tiles[i].value.textContent = value(stats);
      this.tiles[i].more.textContent = more(stats);
    });
    const sequences = [...running, ...waiting].map((s) => ({ ...s, name: shortName(s) }));
    this.map.update(blocks, sequences);
    this.table.update(sequences, stats.queue_depth - waiting.length);
    this.speed.update(samples);
    this.batch.update(samples);
  }

  showDown(message) {
    this.down.hidden = false;
    this.down.textContent = message;
  }
}

function section(name, title, ...children) {
  return el("section", { class: `card ${name}` }, title && el("h3", { class: "title" }, title), children);
}

// The random part of an id says enough; choices of one request are numbered.
function shortName({ request_id, index }) {
  const tail = request_id.replace(/^[a-z]+-/, "").slice(-8);
  return index ? `${tail}.${index}` : tail;
}
