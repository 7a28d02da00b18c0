"""The pytest plugin: fixtures ``fabric``, ``workers``, ``group``, ``faults`` and
``assert_nothing_left``.

Loaded by its entry point wherever the testbed is installed, so all that builds networks is imported
when a test asks for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from testbed.core.renamed import renamed

if TYPE_CHECKING:
    from testbed.fabric import Fabric
    from testbed.testing.faults import FaultsInForce
    from testbed.testing.group import Group
    from testbed.testing.keep import Keeper
    from testbed.testing.lease import Fabrics, Lease
    from testbed.worker import Workers

__all__ = ["MakeFaults"]

MakeFaults = Callable[..., "FaultsInForce"]

_MARKERS = (
    (
        "fabric(hosts=4, topology='star', switch='xdp', mtu=1500, offload=True, queues=None,"
        " k=None, datapath=None): what the fixture `fabric` builds"
    ),
    (
        "group(backend='xdp-ring', ...): what the fixture `group` opens, and its"
        " testbed.comm.options.CollectiveOptions"
    ),
)

_faults: pytest.StashKey[list[FaultsInForce]] = pytest.StashKey()
_lease: pytest.StashKey[Lease] = pytest.StashKey()
_keeper: pytest.StashKey[Keeper] = pytest.StashKey()


def _seed(text: str) -> int:
    from argparse import ArgumentTypeError

    from testbed.core.errors import SpecError
    from testbed.core.numbers import Whole

    try:
        return Whole(0, (1 << 64) - 1)(text)
    except SpecError as error:
        raise ArgumentTypeError(str(error)) from None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    options = parser.getgroup("testbed", "testbed: faults on real networks")
    options.addoption(
        "--fault-seed",
        type=_seed,
        metavar="N",
        help="seed of all faults, which overrides a test's own",
    )
    options.addoption(
        "--fault-trace",
        action="store_true",
        help="also log frames that meet no fault, for reports of failures",
    )
    options.addoption(
        "--keep",
        action="store_true",
        help="keep the fabric of the first failed test up, in the background",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse former names of options in markers before the first test runs."""
    for item in items:
        for mark in item.iter_markers():
            if mark.name not in ("fabric", "group"):
                continue
            for name in mark.kwargs:
                if (now := renamed(name)) and now in _keys(mark.name):
                    raise pytest.UsageError(
                        f"{item.nodeid}: marker {mark.name}: {name}: renamed to {now}"
                    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int, int]:
    """With ``--keep``, run pytest where it can stay."""
    if not config.getoption("keep"):
        return (yield)
    from testbed.testing.keep import Keeper

    keeper = config.stash[_keeper] = Keeper()
    status = 3  # pytest.ExitCode.INTERNAL_ERROR, should an exception come by
    try:
        status = int((yield) or 0)
    finally:
        keeper.finish(status)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say what the faults of a failed test did."""
    report = yield
    lease = item.stash.get(_lease, None)
    if not report.failed or lease is None:
        return report
    lease.spoilt = True
    if call.when == "call" and (faults := item.stash.get(_faults, [])):
        from testbed.testing.report import explain

        error = call.excinfo.value if call.excinfo else None
        report.sections.append(("faults", explain(item.nodeid, lease.fabric.plan, faults, error)))
    return report


@pytest.fixture(scope="module")
def testbed_fabrics() -> Iterator[Fabrics]:
    """Keep the fabric of one test for the next one of the module, if that needs an equal one."""
    from testbed.testing.lease import Fabrics

    with Fabrics() as fabrics:
        yield fabrics


@pytest.fixture
def testbed_lease(request: pytest.FixtureRequest, testbed_fabrics: Fabrics) -> Iterator[Lease]:
    """Lend a fabric to a test, as its marker ``fabric`` says; the datapath is that of its group, if
    it has one.
    """
    from testbed.collectives.registry import BACKENDS, check_names
    from testbed.plan import plan_fabric
    from testbed.probes import lacking

    if findings := lacking("net"):
        pytest.skip("; ".join(map(str, findings)))
    options = _options(request.node, "fabric")
    known = _keys("fabric")
    if unknown := options.keys() - set(known):
        allowed = ", ".join(known)
        raise pytest.UsageError(
            f"marker fabric: {', '.join(sorted(unknown))} is unknown: must be one of {allowed}"
        )
    datapath = options.pop("datapath", None)
    if datapath is None and "group" in request.fixturenames:
        backend = _options(request.node, "group").get("backend", "xdp-ring")
        check_names([backend])
        datapath = BACKENDS[backend].needs
    item: pytest.Item = request.node
    with testbed_fabrics.lease(plan_fabric(**options), datapath or "sockets") as lease:
        item.stash[_lease] = lease
        yield lease
        if (
            lease.spoilt
            and (keeper := request.config.stash.get(_keeper, None))
            and not keeper.holds
        ):
            _say(request.config, keeper.keep(lease.fabric, testbed_fabrics.hand_over()))
        del item.stash[_lease]


@pytest.fixture
def fabric(testbed_lease: Lease) -> Fabric:
    """Hosts, links and switches that are up: ``@pytest.mark.fabric(hosts=4, switch="bridge")``."""
    return testbed_lease.fabric


@pytest.fixture
def workers(testbed_lease: Lease) -> Workers:
    """A process in every host and switch, which calls functions: ``workers["h1"].call(function,
    key=value)``.
    """
    return testbed_lease.workers


@pytest.fixture
def group(request: pytest.FixtureRequest, testbed_lease: Lease) -> Iterator[Group]:
    """A backend that is open on all hosts: ``@pytest.mark.group(backend="xdp-ring",
    lanes="int16")``.
    """
    from testbed.testing.group import Group

    with Group(testbed_lease.fabric, **_options(request.node, "group")) as group:
        testbed_lease.accept()
        yield group


@pytest.fixture
def faults(request: pytest.FixtureRequest, testbed_lease: Lease) -> MakeFaults:
    """Faults in force during a block: ``with faults("drop p=0.01 link=h1->h2", "link-down host=h2
    for=200ms", seed=7):``.

    Without a seed, a test has its own, always the same.
    """
    from testbed.testing.faults import FaultsInForce

    made = request.node.stash.setdefault(_faults, [])
    config = request.config

    def make(*texts: str, seed: int | None = None, trace: bool = False) -> FaultsInForce:
        chosen = config.getoption("fault_seed")
        if chosen is None:
            chosen = zlib.crc32(request.node.nodeid.encode()) if seed is None else seed
        one = FaultsInForce(
            testbed_lease.fabric, texts, chosen, trace or config.getoption("fault_trace")
        )
        made.append(one)
        return one

    return make


@pytest.fixture
def assert_nothing_left(testbed_lease: Lease) -> Callable[[], None]:
    """Check that devices, programs and processes of the fabric are those that were there when the
    test began.

    What the fixture ``group`` has opened belongs to the test.
    """

    def check() -> None:
        if left := testbed_lease.leftovers():
            raise AssertionError("the fabric is not as it was:\n" + "\n".join(left))

    return check


def _keys(marker: str) -> tuple[str, ...]:
    """Return the keywords that a marker takes."""
    from testbed.comm.options import CollectiveOptions
    from testbed.plan import FabricOptions

    if marker == "fabric":
        return (*FabricOptions.model_fields, "datapath")
    return ("backend", "hosts", *CollectiveOptions.model_fields)


def _options(item: pytest.Item, marker: str) -> dict[str, Any]:
    """Return a marker's keywords; those of a test go before those of its class and module."""
    options: dict[str, Any] = {}
    for mark in item.iter_markers(marker):
        if mark.args:
            raise pytest.UsageError(f"marker {marker}: {mark.args!r}: must be keywords only")
        options = {**mark.kwargs, **options}
    return options


def _say(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        reporter.ensure_newline()
        reporter.write_line(text)
