"""The log: records in the kernel's order, however often the ring buffer wraps, and errors that are
reported.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from testbed.core.errors import FaultError, StorageError
from testbed.faults.fate import judge
from testbed.faults.identity import KINDS, Packet
from testbed.faults.log import RECORD, Drain, read_log
from testbed.faults.replay import check_replay
from testbed.faults.rule_table import Action
from tests.support.faults.programs import Programs, ring

pytestmark = pytest.mark.kernel


def test_records_say_which_rules_have_fired_on_a_frame(tmp_path):
    programs = Programs("duplicate p=0.5 copies=2", "corrupt p=0.5", "drop p=0.3", trace=True)
    with Drain(programs.maps["records"], tmp_path / "log") as drain:
        for chunk in range(100):
            programs.run("impair_tc", ring(1, 3, group=2, seq=9, chunk=chunk, hop=4, attempt=1))
        drain.flush()
        records = read_log([tmp_path / "log"])
    assert (np.diff(records["time"].astype(np.int64)) >= 0).all()
    expected = []
    for chunk in range(100):
        packet = Packet(1, 3, KINDS["reduce"], 2, 9, chunk, 4, 1)
        fired = judge(programs.table, packet, len(ring())).fired
        expected += [(packet, *one, order, len(fired)) for order, one in enumerate(fired)] or [
            (packet, 0, Action.PASS, 0, 0, 0)
        ]
    columns = [
        records[name].tolist()
        for name in (*Packet._fields, "rule", "action", "argument", "order", "fired")
    ]
    assert [(Packet(*row[:8]), *row[8:]) for row in zip(*columns, strict=True)] == expected
    check_replay(programs.table, records)


def test_more_records_than_the_ring_buffer_holds(tmp_path):
    programs = Programs("duplicate")
    room = programs.maps["records"].max_entries // 48
    with Drain(programs.maps["records"], tmp_path / "log") as drain:
        for _ in range(5):
            programs.object.programs["impair_tc"].test_run(ring(), repeat=room // 2)
            drain.flush()
    records = read_log([tmp_path / "log"])
    assert len(records) == 5 * (room // 2)
    assert (records["action"] == Action.DUPLICATE).all()
    assert programs.link()["lost"] == 0


def test_a_full_disk_is_reported():
    programs = Programs("duplicate")
    with Drain(programs.maps["records"], Path("/dev/full")) as drain:
        programs.run("impair_tc", ring())
        with pytest.raises(
            StorageError,
            match=re.escape(
                "the log of faults cannot be written: /dev/full: No space left on device"
            ),
        ):
            drain.flush()


def test_no_logs_are_no_records():
    assert read_log([]).shape == (0,)
    assert read_log([]).dtype == RECORD


CHANGED = {
    "rule": (
        1,
        (
            "met 1 rules, duplicate by rule 1 with 2 as number 0; its fate is duplicate by rule 0"
            " with 2"
        ),
    ),
    "argument": (
        3,
        (
            "met 1 rules, duplicate by rule 0 with 3 as number 0; its fate is duplicate by rule 0"
            " with 2"
        ),
    ),
    "fired": (0, "met 0 rules, none as number 0; its fate is duplicate by rule 0 with 2"),
}


@pytest.mark.parametrize("field", CHANGED)
def test_the_first_record_that_differs_is_named(tmp_path, field):
    programs = Programs("duplicate copies=2", "duplicate p=0")
    with Drain(programs.maps["records"], tmp_path / "log"):
        for chunk in range(5):
            programs.run("impair_tc", ring(chunk=chunk))
    records = read_log([tmp_path / "log"])
    value, words = CHANGED[field]
    records[field][3:] = value
    with pytest.raises(FaultError) as difference:
        check_replay(programs.table, records)
    assert str(difference.value).startswith(
        "record 3 of the log: reduce frame Packet(sender=0, receiver=1, kind=1, "
    )
    assert str(difference.value).endswith(words)
