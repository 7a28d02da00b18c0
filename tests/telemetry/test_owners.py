"""For whom work was done: the task outside softirq, the polled device or the skb's inside."""

import numpy as np

from testbed.kernel.abi import dtype
from testbed.telemetry.profile import MACHINE
from testbed.telemetry.recording import owners

NODES = {101: "h1", 102: "h2", 103: "s1"}


def records(kind, *rows):
    array = np.zeros(len(rows), dtype(kind))
    for record, row in zip(array, rows, strict=True):
        for key, value in row.items():
            record[key] = value
    return array


def owner(softirq, polls=(), **sample):
    found = owners(
        records("telemetry_sample", sample), records("telemetry_poll", *polls), [softirq], NODES
    )
    return found[0]


def test_a_task_pays_for_what_it_does():
    assert owner(False, task_netns=101, device_netns=102) == "h1"


def test_a_task_does_not_pay_for_a_poll_that_follows():
    assert owner(False, [{"cpu": 0, "poll": 5, "netns": 102}], task_netns=101, poll=5) == "h1"


def test_the_polled_device_pays_not_the_interrupted_task():
    polls = [{"cpu": 0, "poll": 5, "netns": 103}, {"cpu": 1, "poll": 5, "netns": 102}]
    assert owner(True, polls, task_netns=101, cpu=0, poll=5) == "s1"
    assert owner(True, polls, task_netns=101, cpu=1, poll=5) == "h2"


def test_in_the_backlog_the_skbs_device_pays():
    assert owner(True, task_netns=101, device_netns=102) == "h2"


def test_work_for_no_node_is_the_machines():
    assert owner(True, task_netns=101) == MACHINE
    assert owner(False, task_netns=999) == MACHINE
