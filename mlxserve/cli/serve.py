"""``mlxserve serve``: the HTTP server over one model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mlxserve.api import server, web
from mlxserve.api.app import create_app
from mlxserve.api.loading import LoadingAnswers
from mlxserve.api.settings import ApiSettings
from mlxserve.cli.options import add_engine_options, add_model_options, engine_config, model_config
from mlxserve.cli.progress import tensor_bar
from mlxserve.config import ServerConfig
from mlxserve.errors import ConfigError
from mlxserve.ipc.engine import ProcessEngine
from mlxserve.llm import open_model
from mlxserve.text.load import load_text
from mlxserve.types import ModelInfo

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# -P: not the working directory, where a model's files may lie, but the installed packages are imported.
ENGINE_COMMAND = (sys.executable, "-P", "-m", "mlxserve.cli.engine_process")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = ServerConfig()
    group = parser.add_argument_group("server")
    group.add_argument("--host", default=defaults.host, help=f"default: {defaults.host}")
    group.add_argument("--port", type=int, default=defaults.port, help=f"0: any free one (default: {defaults.port})")
    group.add_argument(
        "--served-model-name", nargs="+", metavar="NAME", default=[], help="further names that requests may call it by"
    )
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="ask requests for one of the keys in it")
    group.add_argument("--strict", action="store_true", help="refuse unknown request fields instead of reporting them")
    add_model_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    config = ServerConfig(host=args.host, port=args.port, served_model_names=tuple(args.served_model_name))
    keys = _read_keys(args.api_key_file)
    engine_settings = engine_config(args)
    if not keys and config.host not in LOOPBACK:
        print(
            f"warning: anyone who reaches {config.host} can use this server: --api-key-file asks for a key",
            file=sys.stderr,
        )
    listening = server.bind(config.host, config.port)  # first: a taken port must not cost the loading of a model
    model = model_config(args)
    checkpoint = open_model(model)
    text = load_text(checkpoint.tokenizer, checkpoint.eos_token_ids)
    server.listen(listening)  # not before: what is wrong with the files is said by a server that nobody has reached
    engine = ProcessEngine(ENGINE_COMMAND, model, engine_settings)
    try:
        with LoadingAnswers(listening) as loading:
            info, plan = _start(engine, loading)
        names = (info.name, *config.served_model_names)
        settings = ApiSettings(served_names=names, strict=args.strict, api_keys=keys)
        live = web.Live(engine, info)
        server.serve(
            create_app(engine, text, info, settings, pages=web.routes(live)),
            config.host,
            config.port,
            listening=listening,
            on_ready=lambda url: print("\n".join([*plan, f"address          {url}"]), flush=True),
            on_drain=live.close,
        )
    finally:
        engine.shutdown()
    return 0


def _start(engine: ProcessEngine, loading: LoadingAnswers) -> tuple[ModelInfo, list[str]]:
    """Shows the progress on the terminal and in /health."""
    with tensor_bar("loading weights") as bar:

        def progress(done: int, total: int) -> None:
            bar(done, total)
            loading.progress(done, total)

        return engine.start(progress)


def _read_keys(path: Path | None) -> tuple[str, ...]:
    """The lines of a key file. Raises ConfigError when there is no key in it."""
    if path is None:
        return ()
    try:
        keys = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--api-key-file", path, f"cannot be read: {error}") from None
    if not keys:
        raise ConfigError("--api-key-file", path, "holds no key")
    return keys
