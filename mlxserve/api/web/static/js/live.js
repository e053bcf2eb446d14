// Follows the engine's stream of snapshots while somebody looks, and derives rates from its counters. No elements here.

import { watchEngine } from "./client.js";

const RETRY_MS = 1500;
const HISTORY_S = 120;
const SMOOTH_S = 1; // rates are over at least this long

export class Live {
  // model(info), snapshot(snapshot, samples) and down(message) are called as things come.
  constructor({ model, snapshot, down }) {
    this.on = { model, snapshot, down };
    this.abort = null;
    this.samples = []; // {t, decode, prefill, batch, waiting} rates in tokens/s, t in seconds of the engine's clock
    this.counters = [];
    document.addEventListener("visibilitychange", () => this.refresh());
    this.wanted = false;
  }

  setWanted(wanted) {
    this.wanted = wanted;
    this.refresh();
  }

  // Connected only while the view is shown and the page is in sight: an engine that nobody watches does no work for it.
  refresh() {
    const should = this.wanted && document.visibilityState === "visible";
    if (should && !this.abort) this.follow();
    if (!should && this.abort) this.stop();
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
  }

  async follow() {
    const abort = (this.abort = new AbortController());
    while (!abort.signal.aborted) {
      try {
        for await (const { event, data } of watchEngine(abort.signal)) {
          if (abort.signal.aborted) return;
          if (event === "model") this.on.model(data);
          else if (event === "snapshot") this.on.snapshot(decode(data), this.sample(data));
          else this.on.down(data.message);
        }
      } catch (error) {
        if (abort.signal.aborted) return;
        this.on.down(error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  sample({ stats }) {
    const now = { t: stats.uptime_s, decode: stats.decode_tokens_total, prefill: stats.prefill_tokens_total };
    if (this.counters.length && now.t < this.counters.at(-1).t) this.samples = this.counters = []; // another engine
    this.counters = [...this.counters.filter((c, i, all) => i === all.length - 1 || all[i + 1].t > now.t - SMOOTH_S), now];
    const then = this.counters[0];
    const seconds = now.t - then.t;
    const rate = (name) => (seconds > 0 ? (now[name] - then[name]) / seconds : 0);
    const sample = { t: now.t, decode: rate("decode"), prefill: rate("prefill"), batch: stats.requests_running, waiting: stats.queue_depth };
    this.samples = [...this.samples.filter((s) => s.t > now.t - HISTORY_S), sample];
    return this.samples;
  }
}

function decode(snapshot) {
  return { ...snapshot, blocks: Uint8Array.from(atob(snapshot.blocks), (c) => c.charCodeAt(0)) };
}
