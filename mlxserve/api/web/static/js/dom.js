// Making elements. Text always goes in as text: nothing on this page parses markup.

const SVG = "http://www.w3.org/2000/svg";

// el("button", {class: "x", type: "button", onclick: f, "aria-label": "y"}, "text", child, ...)
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  assign(node, attributes);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  assign(node, attributes);
  node.append(...children);
  return node;
}

function assign(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
}

const PATHS = {
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
  retry: "M4 12a8 8 0 1 0 2.5-5.8M4 4v4h4",
  trash: "M5 7h14M10 11v6M14 11v6M7 7l1 13h8l1-13M9 7V4h6v3",
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M13 5.5v5M7 13.5v5",
  sun: "M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8z",
  moon: "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z",
  auto: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 4v16M12 8h3.5M12 12h4.5M12 16h3.5",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

export function byId(id) {
  return document.getElementById(id);
}

// Says a sentence to screen readers.
export function announce(text) {
  byId("announcer").textContent = text;
}

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Plain http from another machine has no clipboard API.
  const area = el("textarea", { class: "visually-hidden", value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// A button that copies what `text()` gives and says so for a moment.
export function copyButton(text, label = "Copy") {
  const words = el("span", {}, label);
  const button = el("button", { type: "button" }, icon("copy"), words);
  button.addEventListener("click", async () => {
    await copyText(text());
    button.firstChild.replaceWith(icon("check"));
    words.textContent = "Copied";
    announce("Copied");
    setTimeout(() => {
      button.firstChild.replaceWith(icon("copy"));
      words.textContent = label;
    }, 1600);
  });
  return button;
}
