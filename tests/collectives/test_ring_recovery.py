"""What a rank says when nothing moves although all answer."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from testbed.collectives.group import GroupSpec, make_groups
from testbed.collectives.ring_recovery import Recovery
from testbed.errors import CollectiveError
from testbed.plan import plan_fabric


class Port:
    """A port whose peers answer probes and send nothing else, but frames of other tensors.

    :param before: How many of those have come before the collective.
    :param meanwhile: How many come each time that it is waited for.
    """

    def __init__(self, spec: GroupSpec, before: int, meanwhile: int) -> None:
        self.spec, self._came, self._meanwhile = spec, before, meanwhile
        self.control = SimpleNamespace(stored=0, next=0, rtt_samples=0, rtt_sum_us=0, rtt_max_us=0)
        self.records = {"attempt": np.zeros(64, np.uint8)}

    def counters(self) -> dict[str, int]:
        return {"bad_tensor": self._came, "bad_length": 0, "bad_chunk": 0}

    def wait(self, total: int, seconds: float) -> bool:
        self._came += self._meanwhile
        return False

    def events(self) -> list[Any]:
        return [SimpleNamespace(rank=rank, generation=5) for rank in range(1, self.spec.size)]

    def done(self, total: int) -> Any:
        return np.zeros(total, np.uint32)

    def take(self, count: int) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


@pytest.mark.parametrize(
    ("before", "meanwhile", "why"),
    [
        (0, 0, " although every rank answers"),
        (7, 0, " although every rank answers"),
        (7, 1, ": the ranks reduce different tensors"),
    ],
)
def test_tensors_differ_only_if_frames_of_others_come_in_this_collective(before: int, meanwhile: int, why: str) -> None:
    spec = make_groups(plan_fabric(hosts=3).hosts, group_id=1, timeout=0.05)[0]
    recovery = Recovery(Port(spec, before, meanwhile))  # type: ignore[arg-type]
    with pytest.raises(CollectiveError) as failure:
        recovery.wait(5, 9)
    assert str(failure.value).startswith(f"rank 0 (h1): no progress for 0.05 s{why} (all-reduce 5: 0 of 9 chunks after ")
