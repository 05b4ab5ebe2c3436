"""Tensors of others as bytes, without a copy. No tensor library is imported for it: who brings a
torch tensor has loaded torch."""

import ctypes
import sys
from typing import Any

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.transfer.base import U8


def tensor_bytes(memory: Any) -> U8 | None:
    """uint8[n] over a CPU tensor of torch, or of anybody who speaks DLPack; None for what is no
    tensor. Raises BadInput for one on a device, or one that is not contiguous."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(memory, torch.Tensor):
        return _torch_bytes(torch, memory)
    if not hasattr(memory, "__dlpack__") or isinstance(memory, np.ndarray):
        return None
    try:
        array = np.from_dlpack(memory)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"cannot use a {type(memory).__name__} as memory: {error}") from None
    if not array.flags.c_contiguous:
        raise BadInput(f"tensor of shape {array.shape} is not contiguous")
    return array.reshape(-1).view(np.uint8)


def host_tensor(torch: Any, array: U8) -> Any:
    """The other way round: a torch tensor over uint8[n], n > 0, which must outlive it and may be
    read-only: then nobody may write to the tensor."""
    # By address: from_numpy warns of memory that is read-only.
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _torch_bytes(torch: Any, tensor: Any) -> U8:
    if tensor.device.type != "cpu":
        raise BadInput(
            f"the tensor lives on {tensor.device}, which this process cannot address; go through "
            f"moonpool.transfer.Staging"
        )
    if not tensor.is_contiguous():
        raise BadInput(f"tensor of shape {tuple(tensor.shape)} is not contiguous; copy it first")
    array: U8 = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return array
