"""Host tensors as torch tensors, without loss where the dtype allows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from mlxserve.formats.tensors import AffineTensor, DenseDtype, DenseTensor, HostTensor

DTYPES: dict[DenseDtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def to_torch(tensor: HostTensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of its own memory in ``dtype``; quantised rows are expanded in float32."""
    match tensor:
        case DenseTensor():
            return dense(tensor).to(dtype, copy=True)
        case AffineTensor():
            return expand(tensor).to(dtype)


def dense(tensor: DenseTensor) -> torch.Tensor:
    """In the tensor's own dtype; shares its memory where that is writable."""
    data = np.require(tensor.data, requirements=["C", "W"])
    if tensor.dtype == "bfloat16":
        return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(data)


def expand(tensor: AffineTensor) -> torch.Tensor:
    """[N, K] in float32: scale * q + bias."""
    rows = tensor.packed.shape[0]
    q = torch.from_numpy(unpack(tensor.packed, tensor.bits)).view(rows, -1, tensor.group_size)
    scales, biases = dense(tensor.scales).float()[..., None], dense(tensor.biases).float()[..., None]
    return torch.addcmul(biases, q.float(), scales).view(rows, -1)


def unpack(packed: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Words [N, W] -> values [N, 32 W / bits]: each row is a little-endian string of ``bits``-wide values."""
    octets: NDArray[np.uint8] = np.ascontiguousarray(packed).view(np.uint8)
    shifts = bits * np.arange(8, dtype=np.uint64)
    # Eight values fill ``bits`` octets, whatever the width.
    strings = np.zeros((len(octets), octets.shape[1] // bits), np.uint64)
    for i in range(bits):
        strings |= octets[:, i::bits].astype(np.uint64) << np.uint64(8 * i)
    values = (strings[..., None] >> shifts).astype(np.uint8)
    values &= np.uint8(2**bits - 1)
    return values.reshape(len(octets), -1)
