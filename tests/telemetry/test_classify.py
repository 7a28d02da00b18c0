"""Classes of stacks: the shipped file on recorded stacks, and errors in a file of one's own."""

import json
from pathlib import Path

import pytest

from testbed.core.errors import SpecError
from testbed.telemetry.classify import UNCLASSIFIED, load_classes

STACKS = json.loads(Path(__file__).with_name("stacks.json").read_text())
"""Recorded in benches of all backends on Linux 6.18."""


@pytest.mark.parametrize(
    "stack", STACKS, ids=lambda stack: f"{stack['class']}-{(stack['kernel'] or stack['user'])[0]}"
)
def test_recorded_stacks(stack):
    classes = load_classes()
    assert classes.of(stack["kernel"], stack["user"]) == stack["class"]
    assert classes.in_softirq(stack["kernel"]) == stack["softirq"]


def test_every_class_has_a_recorded_stack():
    recorded = {stack["class"].partition(".")[0] for stack in STACKS}
    assert {*load_classes().names, UNCLASSIFIED} == recorded


def test_the_innermost_function_that_is_named_decides():
    classes = load_classes()
    assert classes.of(["_raw_spin_lock", "tcp_ack", "ip_rcv", "veth_poll"], []) == "tcp"
    assert classes.of(["memcpy", "veth_poll"], []) == "device"


def test_functions_of_system_call_entry_count_only_when_innermost():
    classes = load_classes()
    assert classes.of(["do_syscall_64"], ["libc.so.6!read"]) == "syscall"
    assert classes.of(["a_new_function", "do_syscall_64"], ["libc.so.6!read"]) == UNCLASSIFIED


def test_a_stack_in_user_space_is_classified_by_the_function_alone():
    classes = load_classes()
    assert classes.of([], ["libtorch_cpu.so!_ZN4gloo3sumIfEEvPvPKvS3_m"]) == "reduce"
    assert classes.of([], ["libtorch_cpu.so!_ZN2at6native4gemm"]) == "model"
    assert classes.of([], ["a.out!", "python3.11!"]) == UNCLASSIFIED
    assert classes.of([], []) == UNCLASSIFIED


def test_programs_are_told_apart_but_not_their_helpers():
    classes = load_classes()
    stack = ["__htab_map_lookup_elem", "bpf_prog_487ddebc28b5087c_ring_link", "veth_xdp_rcv_one"]
    assert classes.of(stack, []) == "program.ring_link"
    assert classes.part("program.ring_link") == "program"
    assert classes.of(["bpf_prog_98dd51fcfab0974f_l2_switch"], []) == "switch"


def test_waits_have_the_reason_of_their_system_call():
    classes = load_classes()
    reasons = [classes.wait(name) for name in ("epoll_wait", "recvmsg", "futex", "io_uring_enter")]
    assert reasons == ["poll", "receive", "futex", "other"]
    assert classes.wait(None) == "fault"


CLASS = '[[classes]]\nname = "tcp"\ntitle = "TCP"\npart = "network"\nkernel = ["^tcp_"]\n'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            'softirq = ["a"]\n' + CLASS.replace("^tcp_", "tcp_("),
            "classes[0].kernel[0] = 'tcp_(': must be a regular expression:",
        ),
        (
            'softirq = ["a"]\n' + CLASS.replace("network", "net"),
            'classes[0].part = "net": must be network, kernel, program or user',
        ),
        (
            'softirq = ["a"]\n' + CLASS + "colour = 1\n",
            "unknown key classes[0].colour: must be",
        ),
        (CLASS, "table [softirq] is missing"),
        ("softirq = [", "classes.toml: not TOML:"),
    ],
)
def test_errors_name_the_place(tmp_path, text, error):
    path = tmp_path / "classes.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_classes(path)
    assert str(caught.value).startswith(error)
    assert "\n" not in str(caught.value)
