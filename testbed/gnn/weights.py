"""A model's weights as one vector, which ranks sum, update and compare; and what else it has."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from testbed.comm.backend import Backend

__all__ = ["digest", "flatten", "give", "pack", "unpack"]


def flatten(parameters: Iterable[nn.Parameter]) -> nn.Parameter:
    """Move parameters into one vector, and their gradients into another that is its ``grad``.

    The parameters and their ``grad`` become views of these, so that backward writes into the vector
    that is summed over ranks, and the optimizer updates one tensor: no copies in between.

    :returns: float32, shape (number of elements of all parameters,).
    """
    parameters = list(parameters)
    with torch.no_grad():
        flat = nn.Parameter(torch.cat([parameter.reshape(-1) for parameter in parameters]))
        flat.grad = torch.zeros_like(flat)
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            parameter.data = flat.data[start:end].view_as(parameter)
            parameter.grad = flat.grad[start:end].view_as(parameter)
            start = end
    return flat


def digest(weights: Tensor) -> str:
    """Return a hash of the bits of weights."""
    return hashlib.blake2b(weights.detach().numpy().tobytes(), digest_size=8).hexdigest()


@torch.no_grad()
def give(backend: Backend, tensors: Sequence[Tensor]) -> None:
    """Give all ranks the tensors of rank 0, bit by bit, as torch's DDP does with parameters and
    buffers (`torch.distributed._broadcast_coalesced`); a collective. Ranks keep their own with a
    backend that has no broadcast.

    :param tensors: Of any types, the same on all ranks.
    :raises CollectiveError: It could not complete.
    """
    packed = pack(tensors)
    if not len(packed) or not backend.broadcasts:
        return
    words = packed.view(np.float32)
    for start in range(0, len(words), backend.spec.capacity):
        backend.broadcast(words[start : start + backend.spec.capacity])
    unpack(packed, tensors)


def pack(tensors: Sequence[Tensor]) -> NDArray[np.uint8]:
    """Return the bytes of tensors, and zeros up to a multiple of 4."""
    raw = [_bytes(tensor) for tensor in tensors]
    size = sum(len(each) for each in raw)
    return np.concatenate([*raw, np.zeros(-size % 4, np.uint8)])


@torch.no_grad()
def unpack(packed: NDArray[np.uint8], tensors: Sequence[Tensor]) -> None:
    """Give tensors the values that `pack` has packed of others of their types and shapes."""
    start = 0
    for tensor in tensors:
        end = start + tensor.numel() * tensor.element_size()
        found = torch.from_numpy(packed[start:end].copy()).view(tensor.dtype)
        tensor.copy_(found.reshape(tensor.shape))
        start = end


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found
