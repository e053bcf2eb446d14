// Server-sent events from a fetch response (EventSource can send neither a body nor a key).

// Yields {event, data} for each event of a text/event-stream body.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      // Half a "\r\n" at the end of a chunk must wait for its other half.
      const whole = buffer.endsWith("\r") ? buffer.length - 1 : buffer.length;
      const parts = buffer.slice(0, whole).split(/\r\n\r\n|\n\n|\r\r/);
      buffer = parts.pop() + buffer.slice(whole);
      for (const part of parts) {
        const event = parse(part);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}

function parse(text) {
  let event = "message";
  const data = [];
  for (const line of text.split(/\r\n|\n|\r/)) {
    const colon = line.indexOf(":");
    if (colon === 0) continue; // a comment keeps the connection alive
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") event = value;
    else if (name === "data") data.push(value);
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
