// The server's HTTP interface, the same that every other client speaks.

import { events } from "./sse.js";

const KEY = "mlxserve.api-key";

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export function apiKey() {
  return localStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  if (key) localStorage.setItem(KEY, key);
  else localStorage.removeItem(KEY);
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.authorization = `Bearer ${apiKey()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?");
  }
  if (!response.ok) throw new ApiError(await message(response), response.status);
  return response;
}

async function message(response) {
  if (response.status === 401) return "The server asks for an API key. Set it in Settings.";
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

// {status, model, quant, ...}; throws ApiError.
export async function health() {
  return (await request("/health")).json();
}

// Events of the engine's live stream: {event: "model" | "snapshot" | "down", data}.
export async function* watchEngine(signal) {
  const response = await request("/stats/stream", { signal });
  for await (const { event, data } of events(response.body)) yield { event, data: JSON.parse(data) };
}

// Yields {content}, {reasoning}, {finish} and {usage} as the answer comes; throws ApiError when it fails.
export async function* chat(body, signal) {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const { data } of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message);
    const choice = chunk.choices?.[0];
    if (choice?.delta?.reasoning_content) yield { reasoning: choice.delta.reasoning_content };
    if (choice?.delta?.content) yield { content: choice.delta.content };
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
    if (chunk.usage) yield { usage: chunk.usage };
  }
  throw new ApiError("The connection closed before the answer was complete.");
}
