"""The llm program, told of the server by its own configuration file."""

import os
import pathlib
import subprocess
import sys
import tempfile

MODEL = os.environ["MODEL"]
CONFIGURATION = f"""
- model_id: mine
  model_name: {MODEL}
  api_base: {os.environ["BASE_URL"]}/v1
- model_id: mine-completion
  model_name: {MODEL}
  api_base: {os.environ["BASE_URL"]}/v1
  completion: true
"""


def llm(*arguments: str) -> str:
    program = str(pathlib.Path(sys.executable).with_name("llm"))
    return subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout


with tempfile.TemporaryDirectory() as home:
    os.environ["LLM_USER_PATH"] = home
    (pathlib.Path(home) / "extra-openai-models.yaml").write_text(CONFIGURATION)
    ask = ("What is the capital of France?", "-m", "mine", "-o", "temperature", "0", "-o", "max_tokens", "16")
    streamed, whole = llm(*ask), llm(*ask, "--no-stream")
    assert "Paris" in whole, whole
    assert streamed == whole
    assert llm("And of Italy?", "-c", "-o", "temperature", "0", "-o", "max_tokens", "16").strip()
    counted = llm("1 2 3 4 5 6", "-m", "mine-completion", "-o", "temperature", "0", "-o", "max_tokens", "4")
    assert counted.startswith(" 7 8"), counted
