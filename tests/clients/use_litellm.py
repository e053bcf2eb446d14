"""litellm's OpenAI-compatible provider: chats streamed and not, text completion, errors."""

import asyncio
import os

import litellm
import pytest

MODEL = "openai/" + os.environ["MODEL"]
here = {"api_base": os.environ["BASE_URL"] + "/v1", "api_key": "none"}
asks = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}

whole = litellm.completion(**here, **asks, max_tokens=16)
text = whole.choices[0].message.content
assert "Paris" in text, text
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

chunks = list(litellm.completion(**here, **asks, max_tokens=16, stream=True))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == [whole.choices[0].finish_reason]


async def many() -> None:
    answers = await asyncio.gather(*(litellm.acompletion(**here, **asks, max_tokens=16) for _ in range(4)))
    assert all(answer.choices[0].message.content == text for answer in answers)


asyncio.run(many())
completed = litellm.text_completion(
    model="text-completion-openai/" + os.environ["MODEL"], prompt="1 2 3 4 5 6", max_tokens=4, temperature=0, **here
)
assert completed.choices[0].text == " 7 8", completed.choices[0].text
with pytest.raises(litellm.BadRequestError, match="temperature"):
    litellm.completion(**here, **asks | {"temperature": 9})
