"""The openai package: chats and completions, streamed and not, log-probabilities, errors, raw headers."""

import os

import openai
import pytest

MODEL = os.environ["MODEL"]
client = openai.OpenAI(base_url=os.environ["BASE_URL"] + "/v1", max_retries=0, timeout=120)
asks = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}

whole = client.chat.completions.create(**asks, max_tokens=16, seed=1, n=2)
text = whole.choices[0].message.content
assert "Paris" in text, text
assert whole.choices[1].message.content == text
assert whole.usage.prompt_tokens_details.cached_tokens >= 0

chunks = list(
    client.chat.completions.create(**asks, max_tokens=16, stream=True, stream_options={"include_usage": True})
)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
assert chunks[-1].usage.completion_tokens * 2 == whole.usage.completion_tokens
with client.chat.completions.stream(**asks, max_tokens=16) as stream:
    assert stream.get_final_completion().choices[0].message.content == text

scored = client.chat.completions.create(**asks, max_tokens=4, logprobs=True, top_logprobs=3).choices[0].logprobs.content
assert len(scored) == 4
assert bytes(byte for entry in scored for byte in entry.bytes).decode() == text[: len("".join(e.token for e in scored))]
assert scored[0].top_logprobs[0].logprob >= scored[0].top_logprobs[1].logprob

prompt = "1 2 3 4 5 6"
done = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=8, stop="9")
assert done.choices[0].text == " 7 8 ", done.choices[0].text
assert done.choices[0].finish_reason == "stop"
parts = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=8, stop="9", stream=True)
assert "".join(part.choices[0].text for part in parts) == done.choices[0].text
echoed = client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=0, max_tokens=1, temperature=0)
assert echoed.choices[0].text.startswith(prompt)
assert echoed.choices[0].logprobs.token_logprobs[0] is None

raw = client.chat.completions.with_raw_response.create(**asks, max_tokens=1, extra_body={"top_k": 5, "unheard_of": 1})
assert raw.headers["x-mlxserve-ignored"] == "unheard_of"
assert MODEL in [model.id for model in client.models.list()]
with pytest.raises(openai.BadRequestError, match="temperature"):
    client.chat.completions.create(**asks | {"temperature": 9})
with pytest.raises(openai.NotFoundError, match="does not exist"):
    client.chat.completions.create(**asks | {"model": "none"})
