from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import embedded_model_path, open_checkpoint
from mlxserve.formats.gguf import read_gguf
from mlxserve.formats.gguf_blocks import TYPES, decode
from tests.formats.crafted import CRAFTED
from tests.formats.gguf_files import Kind, array, header, key, string, tensor_entry, write_llama


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf").path.read_bytes()


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_file_is_one_clear_error(name: str, tmp_path: Path) -> None:
    """LOAD-09."""
    data, word = CRAFTED[name]
    path = tmp_path / "crafted.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    assert word in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS bounds nothing elsewhere")
def test_crafted_files_need_neither_time_nor_memory(tmp_path: Path) -> None:
    """LOAD-09: under a limit of 1 GiB of address space, each within 2 s."""
    paths = []
    for index, (data, _) in enumerate(CRAFTED.values()):
        paths.append(tmp_path / f"{index}.gguf")
        paths[-1].write_bytes(data)
    command = [sys.executable, "-m", "tests.formats.crafted", *map(str, paths)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root, check=True)
    *lines, peak = done.stdout.splitlines()
    assert len(lines) == len(paths)
    for line in lines:
        seconds, outcome = line.split("\t")
        assert outcome != "opened"
        assert float(seconds) < 2
    assert int(peak) < 400 * 1024


def test_a_huge_sparse_file_is_refused_at_once(tmp_path: Path) -> None:
    """LOAD-09: the claims fit the file's size, which costs nothing on disk."""
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(header(keys=(array("k", 8, 2**40),), data=b""))
        file.truncate(2**40)
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match="limit"):
        read_gguf(path)
    with path.open("r+b") as file:
        file.write(header(keys=(key("k", 8, struct.pack("<Q", 2**39)),), data=b""))
    with pytest.raises(CheckpointError, match="134217728"):
        read_gguf(path)
    assert time.perf_counter() - start < 2


def test_values_of_every_type(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1 / 3)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve ✓")
    writer.add_array("strings", ["", "a", "é"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    file = read_gguf(path)
    expected = {"u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1, "i32": -(2**31)}
    expected |= {"u64": 2**64 - 1, "i64": -(2**63), "f32": 0.5, "f64": 1 / 3, "yes": True, "text": "naïve ✓"}
    for name, value in expected.items():
        assert file.metadata[name] == value
        assert type(file.metadata[name]) is type(value)
    assert file.strings("strings") == ("", "a", "é")
    np.testing.assert_array_equal(file.numbers("ints"), [1, -2, 3])
    np.testing.assert_array_equal(file.numbers("floats"), [0.5, 1.5])
    for getter in (file.integer, file.number, file.boolean, file.strings, file.numbers):
        with pytest.raises(CheckpointError, match="text"):
            getter("text")
    with pytest.raises(CheckpointError, match="yes"):
        file.integer("yes")
    with pytest.raises(CheckpointError, match="i8 is -128"):
        file.positive_integer("i8")
    with pytest.raises(CheckpointError, match="lacks nothing"):
        file.positive_integer("nothing")


def test_version_2_and_another_alignment(tmp_path: Path) -> None:
    path = tmp_path / "v2.gguf"
    data = np.arange(64, dtype=np.float32)
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 2, 2, 1)
        + key("general.alignment", 4, struct.pack("<I", 64))
        + tensor_entry("first", (4, 2))
        + tensor_entry("second", (8,), offset=64)
    )
    path.write_bytes(head + bytes(-len(head) % 64) + data.tobytes())
    file = read_gguf(path)
    assert file.tensors["first"].shape == (2, 4)
    np.testing.assert_array_equal(file.raw(file.tensors["second"]).view(np.float32), data[16:24])


def test_the_embedded_file_equals_the_gguf_packages_reading() -> None:
    path = embedded_model_path()
    start = time.process_time()
    ours = read_gguf(path)
    assert time.process_time() - start < 0.3
    theirs = gguf.GGUFReader(path)
    assert {name: (t.start, t.nbytes, t.shape) for name, t in ours.tensors.items()} == {
        t.name: (t.data_offset, t.n_bytes, tuple(int(n) for n in reversed(t.shape))) for t in theirs.tensors
    }
    tokens = theirs.fields["tokenizer.ggml.tokens"]
    assert ours.strings("tokenizer.ggml.tokens") == tuple(tokens.contents())
    assert ours.metadata["llama.rope.freq_base"] == theirs.fields["llama.rope.freq_base"].contents()


def open_and_read(path: Path) -> None:
    checkpoint = open_checkpoint(str(path))
    for name in checkpoint.source.names():
        checkpoint.source.read(name)


def test_the_file_that_is_fuzzed_opens(pristine: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(pristine)
    open_and_read(path)


HIDDEN_WIDE = 256
_HEADER_BYTES = 2500  # of the tiny file; what follows is weights


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, _HEADER_BYTES),
            st.sampled_from([b"\xff", b"\x00", b"\x80", b"\xff" * 4, b"\xff" * 8, struct.pack("<Q", 2**40), b"\x01"]),
        ),
        max_size=4,
    ),
    cut=st.one_of(st.none(), st.integers(0, 60_000)),
)
def test_damage_is_a_checkpoint_error_or_harmless(
    pristine: bytes, tmp_path: Path, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(pristine)
    for position, replacement in edits:
        data[position : position + len(replacement)] = replacement
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data[:cut])
    with contextlib.suppress(CheckpointError):
        open_and_read(path)


@pytest.mark.parametrize("bytes_left", [0, 3, 23, 24, 100, 1000, -1, -1000])
def test_a_truncated_model_never_opens(pristine: bytes, tmp_path: Path, bytes_left: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(pristine[:bytes_left])
    with pytest.raises(CheckpointError, match=r"truncated|not a GGUF"):
        open_checkpoint(str(path))


def test_other_contents_under_the_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for data in (b"PK\x03\x04" + bytes(100), string("{}" * 50), b"\x80\x04" + bytes(60)):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="not a GGUF file"):
            open_checkpoint(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(str(path))


def test_an_unsupported_block_type_names_tensor_and_type(tmp_path: Path) -> None:
    """IQ4_NL's blocks have as many bytes as Q4_0's, so that only the type's number is changed."""
    path = write_llama(tmp_path / "iq.gguf", Kind.Q4_0).path
    data = bytearray(path.read_bytes())
    at = data.index(string("token_embd.weight")) + len(string("token_embd.weight")) + 4 + 2 * 8
    assert struct.unpack_from("<I", data, at) == (Kind.Q4_0,)
    struct.pack_into("<I", data, at, Kind.IQ4_NL)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"'token_embd.weight' has the GGML type IQ4_NL; supported are F32, F16"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("dims", "data", "message"),
    [
        ((256, 2**40), 4096, "truncated or corrupt: the tensor 't' of"),
        ((256, 2), -1, "truncated or corrupt: the tensor 't' of"),
        ((257, 2), 4096, "rows of .* are multiples of"),
        ((0, 2), 4096, "the tensor 't' has shape"),
        ((2**63, 2**63), 4096, "truncated or corrupt: the tensor 't' of"),
    ],
    ids=["huge", "cut short", "odd rows", "empty", "overflowing"],
)
def test_blocks_that_do_not_fit(kind: Kind, dims: tuple[int, ...], data: int, message: str, tmp_path: Path) -> None:
    """Of every type: refused by the header alone, with nothing allocated for the weights."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if block == 1 and dims[0] == 257:
        pytest.skip("rows of any length")
    size = data if data > 0 else 512 // block * block_bytes + data
    path = tmp_path / "t.gguf"
    path.write_bytes(header(tensors=(tensor_entry("t", dims, kind),), data=bytes(size)))
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message):
        read_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("kind", [kind for kind in TYPES if GGML_QUANT_SIZES[kind][0] > 1], ids=lambda kind: kind.name)
def test_a_scale_that_is_not_finite_names_file_and_tensor(kind: Kind, tmp_path: Path) -> None:
    """Every byte 0xff is a not-a-number wherever the type has its float16."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    path = tmp_path / "m.gguf"
    blocks = np.full((HIDDEN_WIDE, HIDDEN_WIDE // block * block_bytes), 0xFF, np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    with pytest.raises(CheckpointError, match="'t' has a block whose scale is not finite"):
        decode(file.raw(file.tensors["t"]), file.tensors["t"])
