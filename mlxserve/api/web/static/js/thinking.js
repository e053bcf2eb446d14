// Reasoning that a model writes into its answer as <think>...</think>.

const OPEN = "<think>";
const CLOSE = "</think>";

// {thinking, answer, open}: open while the reasoning has no end yet. Only reasoning at the start counts; some templates
// open it in the prompt, so a closing tag alone ends it too.
export function splitThinking(text) {
  const start = text.trimStart();
  const opened = start.startsWith(OPEN);
  // The tag may still be on its way, a few characters a frame.
  if (!opened && text && OPEN.startsWith(start)) return { thinking: "", answer: "", open: true };
  const body = opened ? start.slice(OPEN.length) : text;
  const end = body.indexOf(CLOSE);
  if (end >= 0) return { thinking: body.slice(0, end).trim(), answer: body.slice(end + CLOSE.length).trimStart(), open: false };
  return opened ? { thinking: body.trim(), answer: "", open: true } : { thinking: "", answer: text, open: false };
}
