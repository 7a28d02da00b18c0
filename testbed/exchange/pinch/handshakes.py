"""What ranks tell each other about an exchange before it, and when there will be none any more."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from testbed.comm.group import GroupSpec
from testbed.exchange.pinch.maps import Maps
from testbed.exchange.pinch.numbers import LEAST_EXPONENT
from testbed.exchange.pinch.process import Process
from testbed.protocol.pinch.packet import NOT_FINITE, exponent_in

__all__ = ["Handshakes"]


class Handshakes:
    """Those of one rank, and of others with it."""

    def __init__(self, group: GroupSpec, maps: Maps, process: Process) -> None:
        self._group, self._maps, self._process = group, maps, process

    def enter(self, exponent: int | None, holds: range) -> None:
        """Tell all partners that this rank accepts frames, its largest exponent, and how many
        frames it has for each.

        :param exponent: None: it has values that are not finite.
        :param holds: Range of the group's largest exponent in which payloads can be sent as they
            will be filled.
        """
        said = NOT_FINITE if exponent is None else exponent - LEAST_EXPONENT
        lowest, highest = (
            (holds[0] - LEAST_EXPONENT, holds[-1] - LEAST_EXPONENT) if holds else (1, 0)
        )
        self._process.enter(said, lowest, highest)

    @property
    def words(self) -> NDArray[np.uint64]:
        """Each rank's handshake; 0: none has arrived."""
        seq = self._process.seq
        words: NDArray[np.uint64] = self._maps.peers["theirs"][:, seq & 1].copy()
        words[words >> np.uint64(32) != seq] = 0
        return words

    @property
    def highest(self) -> int | None:
        """The largest exponent of all ranks' values, after all have entered; None: some are not
        finite.
        """
        said = self._process.highest()
        return None if said == NOT_FINITE else said + LEAST_EXPONENT

    @property
    def nonfinite(self) -> list[int]:
        """Ranks with values that are not finite."""
        return [
            rank for rank, word in enumerate(self.words.tolist()) if exponent_in(word) == NOT_FINITE
        ]

    def end(
        self,
        nonfinite: Collection[int] = (),
        gone: Collection[int] = (),
        late: Collection[int] = (),
    ) -> None:
        """Tell all ranks that exchanges have ended.

        :param nonfinite: Ranks with values that are not finite.
        :param gone: Ranks that went silent.
        :param late: Ranks that are up but did not enter in time.
        """
        self._process.end(*(sum(1 << rank for rank in ranks) for ranks in (nonfinite, gone, late)))

    @property
    def ended(self) -> tuple[list[int], list[int], list[int]]:
        """Why exchanges have ended: ranks with values that are not finite, silent ranks, late
        ranks; see `end`.
        """
        control = self._maps.control
        masks = int(control.nonfinite), int(control.gone), int(control.late)
        nonfinite, gone, late = (
            [rank for rank in range(self._group.size) if mask >> rank & 1] for mask in masks
        )
        return nonfinite, gone, late

    @property
    def may_go(self) -> bool:
        """Whether all ranks know that exchanges have ended."""
        everybody = (1 << self._group.size) - 1
        acked = int(self._maps.control.end_acked) | 1 << self._group.rank
        return any(self.ended) and acked == everybody
