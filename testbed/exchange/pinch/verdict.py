"""The texts of errors that say why an exchange makes no progress."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from testbed.protocol.pinch.packet import frames_in
from testbed.protocol.pinch.policy import Seen, Up, Verdict
from testbed.protocol.sequence import is_before

__all__ = ["Words"]

_NAMED = 4
"""Maximum number of ranks for which an error says what is missing."""


class Words:
    """The errors of one rank's exchange.

    :param names: Names of the ranks' hosts.
    :param timeout: The group's timeout in seconds.
    """

    def __init__(self, rank: int, names: Sequence[str], timeout: float) -> None:
        self.rank, self.names, self.timeout = rank, names, timeout

    def gave_up(self, seen: Seen, verdict: Verdict, copies: int, seconds: float) -> str:
        """The error of a rank that has waited in vain.

        :param copies: Number of frames that it has to send, counting a copy for each rank.
        :param seconds: How long it has waited.
        """
        elsewhere = [up.rank for up in verdict.up if not up.seq or is_before(up.seq, seen.seq)]
        if verdict.silent:
            why = f"{self._ranks(verdict.silent)} silent for {self.timeout:g} s"
        elif elsewhere:
            why = f"{self._ranks(elsewhere)} up, but not in this exchange after {self.timeout:g} s"
        else:
            why = (
                f"no progress for {self.timeout:g} s: {'; '.join(self._missing(seen, verdict.up))}"
            )
        frames = {rank: frames_in(seen.handshakes[rank]) for rank in seen.partners}
        received = sum(min(seen.received[rank], count) for rank, count in frames.items())
        got = (
            f"{received} of {sum(frames.values())} frames received, {sum(seen.acked)} of {copies}"
            " acknowledged"
        )
        return f"{self._rank(self.rank)}: {why} (exchange {seen.seq}: {got} after {seconds:.1f} s)"

    def _missing(self, seen: Seen, ups: Sequence[Up]) -> list[str]:
        """What is missing here, and which exchange the ranks are in that should have sent it."""
        found = []
        for up in ups[:_NAMED]:
            name, frames = self.names[up.rank], frames_in(seen.handshakes[up.rank])
            if not seen.handshakes[up.rank]:
                found.append(f"handshake of {name} missing")
            if seen.received[up.rank] < frames:
                found.append(
                    f"frames of {name} missing: {frames - seen.received[up.rank]} of {frames}"
                )
            if lacking := len(seen.lacking(up.rank)):
                found.append(f"acknowledgements of {name} missing: {lacking}")
        for up in ups[:_NAMED]:
            waits = (
                f", waiting for {', '.join(self.names[other] for other in up.waits)}"
                if up.waits
                else ""
            )
            found.append(f"{self.names[up.rank]} is up, in exchange {up.seq}{waits}")
        if len(ups) > _NAMED:
            found.append(f"and {len(ups) - _NAMED} more ranks")
        if seen.owed:
            found.append(f"slices of this rank's own hubs missing: {seen.owed}")
        return found or ["this rank's own frames are not sent"]

    def ended(self, seq: int, gone: Collection[int], late: Collection[int]) -> str:
        """The error of a rank that has heard that others have given up.

        :param gone: Ranks from which the others hear nothing any longer.
        :param late: Ranks that are up, but for which the others have waited in vain.
        """
        if gone:
            why = f"as nothing comes from {self._others(gone)}"
        elif self.rank in late:
            why = f"waiting for {self._others(late)}"
        else:
            why = f"waiting for {self._others(late)}, which {'is' if len(late) == 1 else 'are'} up"
        return f"{self._rank(self.rank)}: the others have given up {why} (exchange {seq})"

    def _rank(self, rank: int) -> str:
        return f"rank {rank} ({self.names[rank]})"

    def _ranks(self, ranks: Collection[int]) -> str:
        return ", ".join(map(self._rank, sorted(ranks)))

    def _others(self, ranks: Collection[int]) -> str:
        return ", ".join(
            "this rank" if rank == self.rank else self._rank(rank) for rank in sorted(ranks)
        )
