// Conversations in the browser's storage: one entry each, and an index. No elements here.

const INDEX = "mlxserve.conversations";
const DEFAULTS = "mlxserve.defaults";
const PREFIX = "mlxserve.conversation.";

// A conversation: {id, title, created, updated, system, sampling: {temperature, ...}, messages: [...]}.
// A message: {role, content, reasoning?, stats?, finish?, error?, stopped?}.

function read(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? fallback;
  } catch {
    return fallback; // someone else's or a broken entry
  }
}

// [{id, title, updated}], newest first.
export function list() {
  return read(INDEX, []).sort((a, b) => b.updated - a.updated);
}

export function load(id) {
  return read(PREFIX + id, null);
}

export function fresh() {
  const { system = "", sampling = {} } = read(DEFAULTS, {});
  const now = Date.now();
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", created: now, updated: now, system, sampling, messages: [] };
}

// False when the browser's storage is full.
export function save(conversation) {
  conversation.updated = Date.now();
  conversation.title ||= titleOf(conversation);
  const { id, title, updated } = conversation;
  try {
    localStorage.setItem(PREFIX + id, JSON.stringify(conversation));
    localStorage.setItem(INDEX, JSON.stringify([{ id, title, updated }, ...list().filter((c) => c.id !== id)]));
    return true;
  } catch (error) {
    if (error.name === "QuotaExceededError") return false;
    throw error;
  }
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
  localStorage.setItem(INDEX, JSON.stringify(list().filter((c) => c.id !== id)));
}

// What the next new conversation starts with.
export function rememberSettings({ system, sampling }) {
  localStorage.setItem(DEFAULTS, JSON.stringify({ system, sampling }));
}

function titleOf(conversation) {
  const first = conversation.messages.find((m) => m.role === "user");
  const text = (first?.content ?? "").trim().replace(/\s+/g, " ");
  return text.length > 60 ? text.slice(0, 59).trimEnd() + "…" : text;
}
