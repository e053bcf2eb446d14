// The conversation that is open: sending, streaming, stopping, editing, trying again.

import * as api from "./client.js";
import { announce, byId, el } from "./dom.js";
import { AssistantMessage, userMessage } from "./message.js";
import * as store from "./store.js";
import { splitThinking } from "./thinking.js";

const IDEAS = [
  "Explain how a language model picks its next word",
  "Write a Python function that merges two sorted lists",
  "Give me three names for a small bakery",
  "What should I see in Lisbon in one day?",
];

export class Chat {
  // changed() is told when the open conversation or its title has; busy(flag) when an answer begins and ends.
  constructor({ changed, busy }) {
    this.changed = changed;
    this.busy = busy;
    this.model = null;
    this.list = byId("messages");
    this.scroller = byId("scroller");
    this.abort = null;
    this.follow = true; // keep the newest text in sight until the reader scrolls up
    this.scroller.addEventListener("scroll", () => this.scrolled());
    byId("to-end").addEventListener("click", () => this.toEnd());
    this.open(store.list()[0]?.id);
  }

  open(id) {
    this.stop();
    this.conversation = (id && store.load(id)) || store.fresh();
    this.draw();
    this.changed(this.conversation);
    this.toEnd();
  }

  draw() {
    const { messages } = this.conversation;
    byId("welcome").hidden = messages.length > 0;
    if (!messages.length) this.drawWelcome();
    this.list.replaceChildren(...messages.map((message, index) => this.nodeOf(message, index)));
  }

  drawWelcome() {
    const host = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname) ? "this machine" : location.hostname;
    const idea = (text) => el("li", {}, el("button", { type: "button", onclick: () => this.send(text) }, text));
    byId("welcome").replaceChildren(
      el("h1", {}, this.model ? `Ask ${this.model} something` : "Ask something"),
      el("p", {}, `It runs on ${host}: what you write goes nowhere else. Open Engine to watch it work.`),
      el("ul", {}, IDEAS.map(idea)),
    );
  }

  // The conversation has been deleted: an answer that is still coming must not bring it back.
  forget(id) {
    if (this.conversation.id !== id) return this.changed(this.conversation);
    this.conversation.deleted = true;
    this.open(null);
  }

  setModel(model) {
    this.model = model;
    if (!this.conversation.messages.length) this.drawWelcome();
  }

  nodeOf(message, index) {
    if (message.role === "user") return userMessage(message, (text) => this.edit(index, text));
    const answer = new AssistantMessage(message, () => this.retry(index));
    answer.finish();
    return answer.node;
  }

  send(text) {
    if (this.abort) return;
    this.conversation.messages.push({ role: "user", content: text });
    this.answer();
  }

  edit(index, text) {
    this.stop();
    this.conversation.messages.length = index;
    this.send(text);
  }

  retry(index) {
    if (this.abort) return;
    this.conversation.messages.length = index;
    this.answer();
  }

  editLast() {
    [...this.list.querySelectorAll(".message.user")].at(-1)?.startEditing();
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
  }

  body() {
    const { system, sampling, messages } = this.conversation;
    const turns = messages
      .filter((m) => m.role === "user" || m.content)
      .map(({ role, content }) => ({ role, content: role === "assistant" ? splitThinking(content).answer : content }));
    return { model: this.model, messages: [...(system ? [{ role: "system", content: system }] : []), ...turns], ...sampling };
  }

  // Streams the answer to the last user message into a new message at the end.
  async answer() {
    const { conversation } = this;
    const body = this.body();
    const message = { role: "assistant", content: "" };
    const index = conversation.messages.push(message) - 1;
    const view = new AssistantMessage(message, () => this.retry(index));
    const abort = (this.abort = new AbortController());
    this.draw();
    this.list.lastChild.replaceWith(view.node);
    view.begin();
    this.busy(true);
    this.save(conversation);
    this.toEnd();
    announce("Writing an answer");
    await this.receive(message, view, body, abort.signal);
    view.finish();
    this.save(conversation);
    if (this.abort === abort || this.abort === null) {
      this.abort = null;
      this.busy(false);
    }
    if (this.conversation === conversation) {
      this.keepInSight();
      announce(message.error ?? (message.stopped ? "Stopped" : view.answer()));
    }
  }

  async receive(message, view, body, signal) {
    const start = performance.now();
    let first = null;
    let last = null;
    let usage = null;
    let tokens = 0;
    let frame = 0;
    const draw = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        view.update();
        this.keepInSight();
      });
    };
    try {
      for await (const part of api.chat(body, signal)) {
        if (part.content || part.reasoning) {
          last = performance.now();
          first ??= last;
          tokens++;
          message.content += part.content ?? "";
          if (part.reasoning) message.reasoning = (message.reasoning ?? "") + part.reasoning;
          draw();
        }
        if (part.finish) message.finish = part.finish;
        if (part.usage) usage = part.usage;
      }
    } catch (error) {
      if (signal.aborted) message.stopped = true;
      else if (error instanceof api.ApiError) message.error = error.message;
      else if (error instanceof TypeError) message.error = "The connection to the server broke.";
      else throw error;
    } finally {
      cancelAnimationFrame(frame);
    }
    if (first === null) return;
    message.stats = {
      prompt: usage?.prompt_tokens,
      completion: usage?.completion_tokens ?? tokens, // without usage (stopped), frames are the best count there is
      cached: usage?.prompt_tokens_details?.cached_tokens,
      ttft_ms: first - start,
      seconds: (last - first) / 1000,
    };
  }

  save(conversation) {
    if (conversation.deleted) return;
    if (!store.save(conversation)) announce("The browser's storage is full; this conversation is not kept.");
    this.changed(this.conversation);
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.follow = scrollHeight - scrollTop - clientHeight < 48;
    byId("to-end").hidden = this.follow;
  }

  keepInSight() {
    if (this.follow) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  toEnd() {
    this.follow = true;
    this.keepInSight();
    byId("to-end").hidden = true;
  }
}
