// The settings sheet: system prompt and sampling of this conversation, and the page's own.

import { apiKey, setApiKey } from "./client.js";
import { byId, el, icon } from "./dom.js";

// [name, label, attributes, help]; an empty field leaves the choice to the server.
const SAMPLING = [
  ["temperature", "Temperature", { min: 0, max: 2, step: "any" }, "0 always takes the likeliest token"],
  ["max_tokens", "Longest answer", { min: 1, step: 1 }, "tokens"],
  ["top_p", "Top-p", { min: 0, max: 1, step: "any" }, "likeliest tokens up to this probability"],
  ["top_k", "Top-k", { min: 0, step: 1 }, "number of tokens to choose from"],
  ["min_p", "Min-p", { min: 0, max: 1, step: "any" }, "relative to the likeliest"],
  ["repetition_penalty", "Repetition penalty", { min: 0.01, max: 10, step: "any" }, "1 is none"],
  ["seed", "Seed", { min: 0, step: 1 }, "the same seed, the same answer"],
];

export class Settings {
  // current() gives the conversation; changed() is told after its settings have been; keyChanged() after the key has.
  // A setting holds from the keystroke that made it: the dialog's close event comes a task after the dialog has gone,
  // and a message can be sent in between.
  constructor({ current, changed, keyChanged }) {
    this.current = current;
    this.changed = changed;
    this.keyChanged = keyChanged;
    this.dialog = byId("settings");
    byId("settings-open").append(icon("sliders"));
    byId("settings-open").addEventListener("click", () => this.open());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // the backdrop
    });
    this.dialog.addEventListener("input", () => this.apply());
    this.dialog.addEventListener("close", () => this.closed());
  }

  open() {
    this.dialog.replaceChildren(this.form(this.current()));
    this.keyAtOpening = apiKey();
    this.dialog.showModal();
  }

  form({ system, sampling }) {
    const field = ([name, label, attributes, help]) =>
      el(
        "label",
        { class: "field" },
        label,
        el("input", { type: "number", name, value: sampling[name] ?? "", placeholder: "server's choice", inputmode: "decimal", ...attributes }),
        el("small", {}, help),
      );
    return el(
      "form",
      { method: "dialog" },
      el("h2", { id: "settings-title" }, "Settings", el("button", { class: "icon-button", "aria-label": "Close" }, icon("close"))),
      el(
        "label",
        { class: "field" },
        "System prompt",
        el("textarea", { name: "system", value: system, placeholder: "You are…" }),
        el("small", {}, "For this conversation, and the next new one."),
      ),
      el("div", { class: "pair" }, SAMPLING.map(field)),
      el(
        "label",
        { class: "field" },
        "API key",
        el("input", { type: "password", name: "key", value: apiKey(), autocomplete: "off" }),
        el("small", {}, "Only if the server asks for one. Kept in this browser."),
      ),
      el("div", { class: "row" }, el("button", { class: "button primary" }, "Done")),
    );
  }

  apply() {
    const form = this.dialog.querySelector("form");
    const conversation = this.current();
    conversation.system = form.elements.system.value.trim();
    conversation.sampling = {};
    for (const [name] of SAMPLING) {
      const input = form.elements[name];
      if (input.value !== "" && input.validity.valid) conversation.sampling[name] = input.valueAsNumber;
    }
    setApiKey(form.elements.key.value.trim());
    this.changed();
  }

  // Those who use the key reconnect once it is whole, not at each keystroke.
  closed() {
    if (apiKey() !== this.keyAtOpening) this.keyChanged();
  }
}
