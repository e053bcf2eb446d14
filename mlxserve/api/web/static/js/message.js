// One message on the page: what was asked, or an answer that may still be growing.

import { copyButton, el, icon } from "./dom.js";
import { LiveMarkdown } from "./markdown.js";
import { splitThinking } from "./thinking.js";

function action(name, label, onclick) {
  return el("button", { type: "button", onclick }, icon(name), el("span", {}, label));
}

// edit(text) is called with the new text.
export function userMessage(message, edit) {
  const text = el("div", { class: "text" }, message.content);
  const actions = el("div", { class: "actions" }, action("edit", "Edit", () => startEditing()), copyButton(() => message.content));
  const node = el("li", { class: "message user" }, el("span", { class: "visually-hidden" }, "You: "), text, actions);

  function startEditing() {
    const area = el("textarea", { "aria-label": "Edit the message", value: message.content });
    const done = (send) => {
      form.replaceWith(text);
      actions.hidden = false;
      if (send && area.value.trim()) edit(area.value);
    };
    const form = el(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          done(true);
        },
      },
      area,
      el(
        "div",
        { class: "edit-buttons" },
        el("button", { class: "button", type: "button", onclick: () => done(false) }, "Cancel"),
        el("button", { class: "button primary", type: "submit" }, "Send"),
      ),
    );
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        done(false);
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        done(true);
      }
    });
    text.replaceWith(form);
    actions.hidden = true;
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }

  node.startEditing = startEditing;
  return node;
}

// An answer: `update()` draws what its message holds by now, `finish()` what only an ended one shows.
export class AssistantMessage {
  constructor(message, retry) {
    this.message = message;
    this.thought = el("div", { class: "inner" });
    this.summary = el("summary", {}, "Thinking");
    this.thinking = el("details", { class: "thinking", hidden: true }, this.summary, this.thought);
    this.prose = el("div", { class: "prose" });
    this.markdown = new LiveMarkdown(this.prose);
    this.notes = el("div");
    this.facts = el("span", { class: "facts" });
    this.actions = el("div", { class: "actions" }, copyButton(() => this.answer()), action("retry", "Retry", retry), this.facts);
    this.node = el("li", { class: "message assistant" }, el("span", { class: "visually-hidden" }, "Answer: "), this.thinking, this.prose, this.notes, this.actions);
  }

  parts() {
    const split = splitThinking(this.message.content);
    const reasoning = this.message.reasoning ?? "";
    return { ...split, thinking: [reasoning, split.thinking].filter(Boolean).join("\n\n"), open: split.open || (reasoning && !split.answer) };
  }

  answer() {
    return this.parts().answer;
  }

  update() {
    const { thinking, answer, open } = this.parts();
    this.thinking.hidden = !thinking;
    if (thinking) {
      this.thought.textContent = thinking;
      this.summary.textContent = open ? "Thinking…" : "Thought about it";
    }
    this.markdown.update(answer);
  }

  begin() {
    this.node.setAttribute("aria-busy", "true");
    this.actions.hidden = true;
  }

  finish() {
    this.node.removeAttribute("aria-busy");
    this.actions.hidden = false;
    this.update();
    const { error, finish, stopped } = this.message;
    this.notes.replaceChildren();
    if (error) this.notes.append(el("p", { class: "notice error", role: "alert" }, error));
    else if (stopped) this.notes.append(el("p", { class: "notice" }, "Stopped."));
    else if (finish === "length") this.notes.append(el("p", { class: "notice" }, "Ended at the token limit."));
    const { stats } = this.message;
    this.facts.textContent = stats ? facts(stats) : "";
    if (stats?.prompt) this.facts.title = `${stats.cached ?? 0} of ${stats.prompt} prompt tokens came from the prefix cache`;
  }
}

// stats: {prompt, completion, cached, ttft_ms, seconds}; seconds from the first to the last token.
export function facts({ prompt, completion, cached, ttft_ms, seconds }) {
  const out = [];
  if (completion) out.push(`${completion} token${completion === 1 ? "" : "s"}`);
  if (completion > 1 && seconds > 0) out.push(`${((completion - 1) / seconds).toFixed(1)}/s`);
  if (ttft_ms !== undefined) out.push(`first in ${ttft_ms < 1000 ? `${Math.round(ttft_ms)} ms` : `${(ttft_ms / 1000).toFixed(1)} s`}`);
  if (prompt) out.push(`${Math.round((100 * (cached ?? 0)) / prompt)}% cached`);
  return out.join(" · ");
}
