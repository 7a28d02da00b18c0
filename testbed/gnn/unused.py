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
        self._left = dict(enumerate(parameters))
        self._hooks = {
            number: each.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, number=number: self._reached(number)
            )
            for number, each in self._left.items()
        }

    def _reached(self, number: int) -> None:
        self._left.pop(number, None)
        if hook := self._hooks.pop(number, None):
            hook.remove()

    @contextmanager
    @torch.no_grad()
    def kept(self) -> Iterator[None]:
        """While the optimizer steps: keep what neither this rank nor another has used."""
        before = {
            number: each.clone()
            for number, each in self._left.items()
            if each.grad is not None and not each.grad.any()
        }
        yield
        for number, values in before.items():
            self._left[number].copy_(values)
