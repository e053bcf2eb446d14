"""langchain-openai: the chat model and the text model, invoked, streamed, batched."""

import asyncio
import os

from langchain_openai import ChatOpenAI, OpenAI

here = {"base_url": os.environ["BASE_URL"] + "/v1", "api_key": "none", "model": os.environ["MODEL"], "max_retries": 0}
question = "What is the capital of France?"

chat = ChatOpenAI(**here, temperature=0, max_tokens=16)
answer = chat.invoke(question)
assert "Paris" in answer.content, answer
assert answer.usage_metadata["output_tokens"] > 0
assert "".join(chunk.content for chunk in chat.stream(question)) == answer.content
assert [each.content for each in chat.batch([question] * 3)] == [answer.content] * 3
assert asyncio.run(chat.ainvoke([("system", "Be brief."), ("human", question)])).content
scored = chat.bind(logprobs=True, top_logprobs=2).invoke(question).response_metadata["logprobs"]["content"]
assert len(scored) == answer.usage_metadata["output_tokens"]

text = OpenAI(**here, temperature=0, max_tokens=4)
assert text.invoke("1 2 3 4 5 6") == " 7 8"
assert "".join(text.stream("1 2 3 4 5 6")) == " 7 8"
