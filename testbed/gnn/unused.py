"""Parameters that a model has and does not use: torch's optimizers leave them as they are, and so
does training here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["Unused"]


class Unused:
    """Knows which parameters no backward pass has reached so far.

    All gradients are views of one vector, so that a parameter without a gradient has one of zeros,
    with which an optimizer would still decay it.

    :param parameters: Views of one vector, in its order.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._left = {
            each: each.register_post_accumulate_grad_hook(self._reached)  # type: ignore[no-untyped-call]
            for each in parameters
        }

    def _reached(self, parameter: nn.Parameter) -> None:
        self._left.pop(parameter).remove()

    @contextmanager
    @torch.no_grad()
    def kept(self) -> Iterator[None]:
        """While the optimizer steps: keep what neither this rank nor another has used."""
        before = {
            each: each.clone()
            for each in self._left
            if each.grad is not None and not each.grad.any()
        }
        yield
        for each, values in before.items():
            each.copy_(values)
