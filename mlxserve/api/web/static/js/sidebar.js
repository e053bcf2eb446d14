// The list of conversations.

import { byId, el, icon } from "./dom.js";
import * as store from "./store.js";

export class Sidebar {
  // open(id), created() and removed(id) are told what the user asks for.
  constructor({ open, create, removed }) {
    this.open = open;
    this.removed = removed;
    this.items = byId("conversations");
    byId("new-chat").prepend(icon("plus"));
    byId("new-chat").addEventListener("click", () => {
      this.close();
      create();
    });
    byId("menu").append(icon("menu"));
    byId("menu").addEventListener("click", () => this.toggle());
    document.addEventListener("click", (event) => {
      if (document.body.classList.contains("menu-open") && !event.target.closest(".sidebar, #menu")) this.close();
    });
  }

  toggle(open = !document.body.classList.contains("menu-open")) {
    document.body.classList.toggle("menu-open", open);
    byId("menu").setAttribute("aria-expanded", String(open));
    if (open) byId("new-chat").focus();
  }

  close() {
    if (document.body.classList.contains("menu-open")) this.toggle(false);
  }

  show(current) {
    const conversations = store.list();
    this.items.replaceChildren(
      ...conversations.map((c) => this.item(c, c.id === current)),
      ...(conversations.length ? [] : [el("li", { class: "empty" }, "What you ask is kept in this browser.")]),
    );
  }

  item({ id, title }, current) {
    const name = title || "Untitled";
    const open = () => {
      this.close();
      this.open(id);
    };
    const remove = () => {
      if (!confirm(`Delete “${name}”?`)) return;
      store.remove(id);
      this.removed(id);
    };
    return el(
      "li",
      { "aria-current": current ? "true" : null },
      el("button", { class: "open", type: "button", title: name, onclick: open }, name),
      el("button", { class: "icon-button", type: "button", "aria-label": `Delete ${name}`, onclick: remove }, icon("trash")),
    );
  }
}
