// The message box: Enter sends, Shift+Enter breaks the line, Escape stops, Up in an empty box edits the last message.

import { byId, icon } from "./dom.js";

export class Composer {
  constructor({ send, stop, editLast }) {
    this.stop = stop;
    this.area = byId("prompt");
    this.button = byId("send");
    this.busy = false;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy) return stop();
      const text = this.area.value.trim();
      if (!text) return;
      this.area.value = "";
      this.refresh();
      send(text);
    });
    this.area.addEventListener("input", () => this.refresh());
    this.area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.busy) byId("composer").requestSubmit();
      } else if (event.key === "ArrowUp" && !this.area.value && !this.busy) {
        event.preventDefault();
        editLast();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.busy && !document.querySelector("dialog[open]")) stop();
      const typing = event.target.closest("input, textarea, select, dialog");
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        this.focus();
      }
    });
    this.setBusy(false);
  }

  focus() {
    this.area.focus();
  }

  setBusy(busy) {
    this.busy = busy;
    this.button.replaceChildren(icon(busy ? "stop" : "send"));
    this.button.setAttribute("aria-label", busy ? "Stop" : "Send");
    this.button.classList.toggle("stop", busy);
    this.refresh();
  }

  refresh() {
    this.button.disabled = !this.busy && !this.area.value.trim();
    if (CSS.supports("field-sizing", "content")) return;
    this.area.style.height = "auto";
    this.area.style.height = `${this.area.scrollHeight}px`;
  }
}
