"""Stacks as text."""

from testbed.telemetry.classify import load_classes
from testbed.telemetry.stacks import Stack, fold, merged, unfold


def test_a_stack_is_folded_and_unfolded_from_the_outermost_function_on():
    folded = fold(("tcp_sendmsg", "do_syscall_64"), ("libc.so.6!send", "a;b!main"))
    assert folded == "a:b!main;libc.so.6!send;do_syscall_64_[k];tcp_sendmsg_[k]"
    assert list(unfold(folded)) == [
        ("a:b!main", False),
        ("libc.so.6!send", False),
        ("do_syscall_64", True),
        ("tcp_sendmsg", True),
    ]
    assert list(unfold("")) == []


def test_behind_an_unknown_address_nothing_is_known():
    assert fold(("futex_wait",), ("libc.so.6!syscall", "?", "python3!main")) == (
        "libc.so.6!syscall;futex_wait_[k]"
    )
    assert fold((), ("?", "python3!main")) == "python3!main;?"


def test_what_a_softirq_has_interrupted_is_no_part_of_its_stack():
    softirq = ("veth_poll", "net_rx_action", "handle_softirqs")
    classes = load_classes()
    assert classes.softirq_part((*softirq, "do_softirq", "tcp_sendmsg")) == softirq
    assert classes.softirq_part(("tcp_sendmsg", "do_syscall_64")) == (
        "tcp_sendmsg",
        "do_syscall_64",
    )


def test_stacks_of_one_text_are_one():
    one, other = Stack("h1", False, "tcp", "a", 2, 1), Stack("h2", False, "tcp", "a", 4, 0)
    assert merged([one, other, one]) == [
        Stack("h1", False, "tcp", "a", 4, 2),
        other,
    ]
