"""A checkpoint into a directory in MLX's form, quantised: what ``mlxserve quantize`` does.

The directory is what mlx-lm, this server and Hugging Face's tools read: safetensors, config.json and the tokenizer's
files, which for a GGUF source are written from its metadata. Knows no device.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import to_bfloat16, to_float32
from mlxserve.formats.checkpoint import COMPANION_FILES, TEMPLATE_DIRECTORY, Checkpoint, TokenizerDirectory
from mlxserve.formats.gguf_tokenizer import GGUFTokenizer
from mlxserve.formats.mlx_writer import write_tensors
from mlxserve.formats.quantize import quantized, requantised
from mlxserve.formats.tensors import AffineTensor, DenseDtype, DenseTensor, HostTensor
from mlxserve.text import gguf_tokenizer

Progress = Callable[[int, int], None]  # tensors written, tensors in all
_CODE_KEYS = ("auto_map", "model_file")  # name Python files, which are not copied


def quantize_checkpoint(
    checkpoint: Checkpoint,
    out: Path,
    bits: int,
    group_size: int,
    progress: Progress | None = None,
    notify: Callable[[str], None] | None = None,
) -> None:
    """Writes ``checkpoint`` to the directory ``out``, which must not exist yet; it appears when it is whole.
    ``notify`` is told if the weights lose accuracy because they are quantised already.

    Raises CheckpointError, also when the group size does not divide a matrix's columns.
    """
    if out.exists():
        raise CheckpointError(f"{out} exists already; name a directory that does not")
    checkpoint = quantized(checkpoint, bits, group_size)
    if notify is not None and (warning := requantised(checkpoint)) is not None:
        notify(warning)
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        modules: dict[str, dict[str, int]] = {}
        write_tensors(part, _tensors(checkpoint, modules, progress))
        _write_json(part / "config.json", _config(checkpoint, modules, bits, group_size))
        if checkpoint.generation_config:
            _write_json(part / "generation_config.json", checkpoint.generation_config)
        _write_tokenizer(part, checkpoint)
        part.rename(out)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _tensors(
    checkpoint: Checkpoint, modules: dict[str, dict[str, int]], progress: Progress | None
) -> Iterator[tuple[str, HostTensor]]:
    """Every tensor by name, quantised; notes in ``modules`` how each module is."""
    source, dtype = checkpoint.source, _dtype(checkpoint)
    names = sorted(source.names())
    for done, name in enumerate(names, start=1):
        tensor = source.read(name)
        if isinstance(tensor, AffineTensor):
            modules[name.removesuffix(".weight")] = {"group_size": tensor.group_size, "bits": tensor.bits}
            tensor = replace(tensor, scales=_cast(tensor.scales, dtype), biases=_cast(tensor.biases, dtype))
        else:
            assert isinstance(tensor, DenseTensor)
            tensor = _cast(tensor, dtype)
        yield name, tensor
        if progress is not None:
            progress(done, len(names))


def _dtype(checkpoint: Checkpoint) -> DenseDtype:
    """MLX computes in the type of the scales and norms: all tensors get the checkpoint's own, 16 bits wide."""
    stated = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
    return "bfloat16" if stated == "bfloat16" else "float16"


def _cast(tensor: DenseTensor, dtype: DenseDtype) -> DenseTensor:
    """Unchanged where float16 could not hold the values."""
    if tensor.dtype == dtype:
        return tensor
    values = to_float32(tensor)
    if dtype == "bfloat16":
        return DenseTensor(to_bfloat16(values), dtype)
    fits = np.abs(values).max(initial=0) <= np.finfo(np.float16).max
    return DenseTensor(values.astype(np.float16), "float16") if fits else tensor


def _config(checkpoint: Checkpoint, modules: dict[str, dict[str, int]], bits: int, group_size: int) -> dict[str, Any]:
    """The config with MLX's section on quantisation: the default, and the modules that differ from it."""
    default = {"group_size": group_size, "bits": bits}
    differing = {name: how for name, how in sorted(modules.items()) if how != default}
    section: dict[str, Any] = {**default, "mode": "affine", **differing}
    config = {key: value for key, value in checkpoint.config.items() if key not in _CODE_KEYS}
    config |= {"torch_dtype": _dtype(checkpoint), "quantization": section, "quantization_config": section}
    config.pop("dtype", None)
    if checkpoint.eos_token_ids:
        config["eos_token_id"] = list(checkpoint.eos_token_ids)
    return config


def _write_tokenizer(out: Path, checkpoint: Checkpoint) -> None:
    files = checkpoint.tokenizer
    if isinstance(files, TokenizerDirectory):
        for name in COMPANION_FILES:
            if (files.path / name).is_file():
                shutil.copyfile(files.path / name, out / name)
        if (files.path / TEMPLATE_DIRECTORY).is_dir():
            shutil.copytree(files.path / TEMPLATE_DIRECTORY, out / TEMPLATE_DIRECTORY)
        return
    assert isinstance(files, GGUFTokenizer)
    tokenizer = gguf_tokenizer.build_tokenizer(files, checkpoint.eos_token_ids)
    tokenizer.backend.save(str(out / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens}
    if "max_position_embeddings" in checkpoint.config:
        config["model_max_length"] = checkpoint.config["max_position_embeddings"]
    _write_json(out / "tokenizer_config.json", config)
    if files.chat_template is not None:
        (out / "chat_template.jinja").write_text(files.chat_template, encoding="utf-8")
    for name, template in files.named_templates.items():
        if name.isidentifier():
            (out / TEMPLATE_DIRECTORY).mkdir(exist_ok=True)
            (out / TEMPLATE_DIRECTORY / f"{name}.jinja").write_text(template, encoding="utf-8")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
