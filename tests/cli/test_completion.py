"""The scripts as the shells run them: what is offered for a half-typed line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlxserve.cli import COMMANDS, main


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    assert main(["completion", request.param]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    return path


def offered(shell: str, script: Path, line: str) -> set[str]:
    """What the shell offers for ``line``."""
    if shell == "fish":
        program = f'source {script}; complete -C "{line}"'
        return {row.split("\t")[0] for row in run("fish", "--no-config", "-c", program).splitlines()}
    program = (
        f'source {script}; COMP_WORDS=({line}); [[ "{line}" == *" " ]] && COMP_WORDS+=(""); '
        'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _mlxserve; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return set(run("bash", "--norc", "-c", program).split("\n")) - {""}


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"needs {shell}")


SHELLS = [pytest.param(shell, shell, marks=needs(shell)) for shell in ("bash", "fish")]


@pytest.mark.parametrize(("shell", "script"), SHELLS, indirect=["script"])
def test_commands_flags_and_values_are_offered(shell: str, script: Path) -> None:
    assert offered(shell, script, "mlxserve ") == set(COMMANDS)
    assert offered(shell, script, "mlxserve pl") == {"plan"}
    assert "--served-model-name" in offered(shell, script, "mlxserve serve --s")
    assert "--served-model-name" not in offered(shell, script, "mlxserve plan --s")
    assert offered(shell, script, "mlxserve serve --backend ") == {"auto", "mlx", "torch"}
    assert offered(shell, script, "mlxserve plan --dtype f") == {"float16", "float32"}
    assert offered(shell, script, "mlxserve bench ") >= {"serve", "sweep"}
    assert "--url" in offered(shell, script, "mlxserve bench serve --u")
    assert "--served-model-name" not in offered(shell, script, "mlxserve bench serve --s")
    assert offered(shell, script, "mlxserve completion ") == {"bash", "fish", "zsh"}


@pytest.mark.parametrize(("shell", "script"), SHELLS, indirect=["script"])
def test_files_are_offered_where_nothing_else_is(shell: str, script: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert offered(shell, script, f"mlxserve plan {tmp_path}/mod") == {f"{tmp_path}/model.gguf"}
    assert offered(shell, script, f"mlxserve serve --model {tmp_path}/mod") == {f"{tmp_path}/model.gguf"}


@pytest.mark.parametrize(
    ("shell", "script"),
    [pytest.param(shell, shell, marks=needs(shell)) for shell in ("bash", "fish", "zsh")],
    indirect=["script"],
)
def test_the_script_is_sound(shell: str, script: Path) -> None:
    run(shell, "-n", str(script))


def test_help_fits_one_screen() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlxserve", "--help"], capture_output=True, text=True, env={"COLUMNS": "80"}
    )
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert all(name in done.stdout for name in COMMANDS)
