// Puts the page together.

import { Chat } from "./chat.js";
import { health } from "./client.js";
import { Composer } from "./composer.js";
import { byId, el, icon } from "./dom.js";
import { Engine } from "./engine.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";

const HEALTH_MS = 5000;
const THEMES = ["auto", "light", "dark"];

function theme() {
  const button = byId("theme");
  const icons = { auto: "auto", light: "sun", dark: "moon" };
  const show = () => {
    const name = localStorage.getItem("mlxserve.theme") ?? "auto";
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.replaceChildren(icon(icons[name]));
    button.setAttribute("aria-label", `Theme: ${name}`);
    button.title = `Theme: ${name}`;
    document.dispatchEvent(new Event("themechange"));
  };
  button.addEventListener("click", () => {
    const name = localStorage.getItem("mlxserve.theme") ?? "auto";
    localStorage.setItem("mlxserve.theme", THEMES[(THEMES.indexOf(name) + 1) % THEMES.length]);
    show();
  });
  show();
}

function views(engine) {
  const buttons = [...document.querySelectorAll(".views button")];
  const wide = matchMedia("(min-width: 1100px)");
  const show = (name) => {
    const view = name === "both" && !wide.matches ? "chat" : name;
    document.body.dataset.view = view;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.view === view));
    engine.setVisible(view !== "chat");
  };
  const stored = () => localStorage.getItem("mlxserve.view") ?? "chat";
  for (const button of buttons) {
    button.addEventListener("click", () => {
      localStorage.setItem("mlxserve.view", button.dataset.view);
      show(button.dataset.view);
    });
  }
  wide.addEventListener("change", () => show(stored()));
  show(stored());
}

// Shows which model answers and whether it can; tells `found` its name once it is known.
function watchHealth(found) {
  const status = byId("model");
  const check = async () => {
    try {
      const { model, quant } = await health();
      if (status.dataset.state !== "ok") {
        status.dataset.state = "ok";
        status.replaceChildren(el("b", {}, model), quant && quant !== "none" ? quant : "");
        found(model);
      }
    } catch (error) {
      status.dataset.state = "down";
      status.textContent = error.message;
    }
  };
  check();
  setInterval(() => document.visibilityState === "visible" && check(), HEALTH_MS);
}

const sidebar = new Sidebar({
  open: (id) => {
    chat.open(id);
    composer.focus();
  },
  create: () => {
    chat.open(null);
    composer.focus();
  },
  removed: (id) => chat.forget(id),
});
const composer = new Composer({ send: (text) => chat.send(text), stop: () => chat.stop(), editLast: () => chat.editLast() });
const chat = new Chat({
  changed: (conversation) => {
    sidebar.show(conversation.id);
    document.title = conversation.title ? `${conversation.title} · mlxserve` : "mlxserve";
  },
  busy: (flag) => composer.setBusy(flag),
});
new Settings({
  current: () => chat.conversation,
  changed: () => {
    store.rememberSettings(chat.conversation);
    if (chat.conversation.messages.length) store.save(chat.conversation);
  },
  keyChanged: () => engine.restart(),
});
const engine = new Engine();

theme();
views(engine);
watchHealth((model) => chat.setModel(model));
composer.focus();
