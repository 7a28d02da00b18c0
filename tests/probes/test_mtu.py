"""Which MTUs in-kernel backends can have."""

from dataclasses import replace

import pytest

from testbed.collectives.registry import BACKENDS
from testbed.core.errors import SpecError
from testbed.probes import Finding, Level, mtu


@pytest.mark.parametrize(
    ("level", "size", "names", "allowed"),
    [
        (Level.OK, 65_535, ["xdp-ring"], True),
        (Level.WARN, 3506, ["xdp-ring"], True),
        (Level.WARN, 3507, ["tcp-ring", "gloo"], True),
        (Level.WARN, 3507, ["gloo", "xdp-ring"], False),
    ],
)
def test_jumbo_frames_need_multi_buffer_xdp(monkeypatch, level, size, names, allowed) -> None:
    found = Finding("multi-buffer XDP", level, "EINVAL (Invalid argument)", "Linux 6.4 or later")
    monkeypatch.setattr(mtu, "find", lambda name: found)
    if not allowed:  # a user who is not root can still plan the run: only root can try the kernel
        monkeypatch.setattr(mtu, "find", lambda name: replace(found, blocked=True))
        mtu.check_mtu(size, names, "--mtu", BACKENDS)
        monkeypatch.setattr(mtu, "find", lambda name: found)
    if allowed:
        mtu.check_mtu(size, names, "--mtu", BACKENDS)
        return
    with pytest.raises(SpecError, match="--mtu: 3507: must be 576 to 3506"):
        mtu.check_mtu(size, names, "--mtu", BACKENDS)
