"""GGUF files that lie about themselves, and a program that opens them under a memory limit (LOAD-09)."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from tests.formats.gguf_files import array, header, key, string, tensor_entry

U32, STRING, ARRAY = 4, 8, 9
BIG = struct.pack("<Q", 2**62)

CRAFTED: dict[str, tuple[bytes, str]] = {
    # name: (the file, a word its error has to contain)
    "empty": (b"", "0 bytes"),
    "magic": (header(magic=b"GGML"), "does not begin"),
    "big-endian": (header(version=struct.pack(">I", 3)), "big-endian"),
    "version 99": (header(version=struct.pack("<I", 99)), "99"),
    "version 1": (header(version=struct.pack("<I", 1)), "version is 1"),
    "key string of 2**40": (header(keys=(string("k", 2**40),)), "metadata key"),
    "key of 2**16": (header(keys=(key("k" * 2**16, U32, bytes(4)),)), "65535"),
    "value string of 2**40": (header(keys=(key("k", STRING, struct.pack("<Q", 2**40)),)), "'k'"),
    "array of 2**60 strings": (header(keys=(array("k", STRING, 2**60),)), "strings"),
    "array of 2**62 numbers": (header(keys=(array("k", U32, 2**62),)), "'k'"),
    "array whose bytes overflow": (header(keys=(array("k", 12, 2**61 + 1),)), "'k'"),
    "array of more empty strings than allowed": (
        header(keys=(array("k", STRING, 2**22 + 1, bytes(8 * (2**22 + 1))),)),
        "limit",
    ),
    "string inside an array": (header(keys=(array("k", STRING, 2, string("a") + BIG),)), "string 1"),
    "array of arrays": (header(keys=(array("k", ARRAY, 1, struct.pack("<IQ", U32, 0)),)), "array of arrays"),
    "unknown value type": (header(keys=(key("k", 77, bytes(8)),)), "77"),
    "unknown element type": (header(keys=(array("k", 99, 1, bytes(8)),)), "99"),
    "2**32 tensors": (header(tensor_count=2**32), "tensors"),
    "2**60 keys": (header(key_count=2**60), "keys"),
    "more keys than there are": (header(key_count=3), "''"),
    "not UTF-8": (header(keys=(struct.pack("<Q", 1) + b"\xff" + bytes(8),)), "UTF-8"),
    "array not UTF-8": (header(keys=(array("k", STRING, 1, struct.pack("<Q", 1) + b"\xff"),)), "UTF-8"),
    "key twice": (header(keys=(key("k", U32, bytes(4)),) * 2), "twice"),
    "alignment 2**30": (header(keys=(key("general.alignment", U32, struct.pack("<I", 2**30)),)), "alignment"),
    "alignment 0": (header(keys=(key("general.alignment", U32, bytes(4)),)), "alignment"),
    "alignment 24": (header(keys=(key("general.alignment", U32, struct.pack("<I", 24)),)), "alignment"),
    "alignment is text": (header(keys=(key("general.alignment", STRING, string("32")),)), "alignment"),
    "offset past the end": (header(tensors=(tensor_entry(offset=2**40),)), "'t'"),
    "offset of 2**64 - 32": (header(tensors=(tensor_entry(offset=2**64 - 32),)), "'t'"),
    "offset not aligned": (header(tensors=(tensor_entry(offset=4),)), "multiple of 32"),
    "dims overflow 64 bits": (header(tensors=(tensor_entry(dims=(2**32, 2**32, 2**32, 2**32)),)), "'t'"),
    "dims overflow to a small number": (header(tensors=(tensor_entry(dims=(2**62, 4, 1, 8)),)), "'t'"),
    "dimension 0": (header(tensors=(tensor_entry(dims=(32, 0)),)), "shape"),
    "no dimensions": (header(tensors=(tensor_entry(dims=()),)), "0 dimensions"),
    "2**31 dimensions": (header(tensors=(string("t") + struct.pack("<I", 2**31) + bytes(32),)), "dimensions"),
    "half a block": (header(tensors=(tensor_entry(dims=(16, 2), kind=3),)), "multiples of 32"),
    "unknown tensor type": (header(tensors=(tensor_entry(kind=4242),)), "4242"),
    "removed tensor type": (header(tensors=(tensor_entry(kind=4),)), "type 4"),
    "overlap": (header(tensors=(tensor_entry("a"), tensor_entry("b", offset=32)), data=bytes(512)), "overlap"),
    "tensor twice": (header(tensors=(tensor_entry("a", (8,)), tensor_entry("a", (8,), offset=32))), "twice"),
    "data cut off": (header(tensors=(tensor_entry(),), data=bytes(255)), "truncated"),
}


def _main() -> None:
    """Opens each file named on the command line; prints its error, its seconds and the peak RSS in KiB."""
    import resource
    import time

    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    from mlxserve.errors import CheckpointError
    from mlxserve.formats.gguf import read_gguf

    for name in sys.argv[1:]:
        start = time.perf_counter()
        try:
            read_gguf(Path(name))
        except CheckpointError as error:
            print(f"{time.perf_counter() - start:.3f}\t{str(error)!r}")
        else:
            print(f"{time.perf_counter() - start:.3f}\topened")
    # Not ru_maxrss: that begins with the peak of the process that forked this one.
    status = Path("/proc/self/status").read_text()
    print(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    _main()
