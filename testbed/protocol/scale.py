"""Which exponent to quantize with: a prediction from the previous collective, checked against this
one's status.

Every rank sees the same statuses, so all make the same prediction and reach the same verdict
without further messages.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PATIENCE", "SLACK", "ScaleGuess"]

SLACK = 2
"""Bits of precision that a prediction may waste before the collective is repeated. The error bound
accounts for them.
"""

PATIENCE = 32
"""The prediction is lowered after it was too high for this many collectives in a row, because the
maxima of gradients fluctuate.
"""


@dataclass
class ScaleGuess:
    """The exponent of one kind of tensor from one collective to the next.

    :param exponent: The exponent to quantize with; None: nothing is known yet.
    :param slack: Bits of precision that the prediction may waste.
    :param patience: See `PATIENCE`. None: the exponent is never lowered while it holds.
    """

    exponent: int | None = None
    slack: int = SLACK
    patience: int | None = PATIENCE
    _calm: int = 0
    _highest: int = 0

    def holds(self, seen: int) -> bool:
        """Was the prediction good enough for a collective whose largest magnitude had exponent
        ``seen``?
        """
        return self.exponent is not None and 0 <= self.exponent - seen <= self.slack

    def learn(self, seen: int) -> None:
        """Update the prediction with a collective's status."""
        if not self.holds(seen):
            self.exponent, self._calm = seen, 0
            return
        assert self.exponent is not None
        if seen == self.exponent:
            self._calm = 0
            return
        self._highest = max(self._highest, seen) if self._calm else seen
        self._calm += 1
        if self.patience is not None and self._calm >= self.patience:
            self.exponent, self._calm = self._highest, 0
