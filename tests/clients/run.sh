#!/bin/sh
# Real clients, unmodified, against a real server of the embedded model. They live in a venv of their own, without torch.
set -eu
cd "$(dirname "$0")/../.."
[ -x .venv-clients/bin/python ] || .venv/bin/python -m venv .venv-clients
.venv-clients/bin/python -m pip install --disable-pip-version-check -q -r tests/clients/requirements.txt
exec .venv/bin/python -m tests.clients.run "$@"
