"""What backends and exchanges ask of a fabric, before it is built."""

import pytest

from testbed.bench.exchange_session import Options
from testbed.core.errors import SpecError
from testbed.plan import plan_fabric
from testbed.run.runner import plan_of
from testbed.scenario import parse_scenario


def test_an_exchange_that_needs_native_programs() -> None:
    Options(plan_fabric(xdp="generic"), ["tcp-pull"])
    with pytest.raises(SpecError, match=r"^--xdp: generic: must be native with pinch$"):
        Options(plan_fabric(xdp="generic"), ["tcp-pull", "pinch"])


@pytest.mark.parametrize("backend", ["pinch", "gloo"])
def test_a_scenario_that_needs_native_programs(backend: str) -> None:
    scenario = parse_scenario(
        {
            "scenario": {"name": "s"},
            "fabric": {"xdp": "generic"},
            "dataset": {"name": "synthetic"},
            "exchange": {"backends": [backend]},
        }
    )
    if backend == "gloo":
        assert plan_of(scenario).xdp == "generic"
        return
    with pytest.raises(SpecError, match=r"^fabric\.xdp: generic: must be native with pinch$"):
        plan_of(scenario)
