"""Numbers as users write them: what is accepted, and the errors for the rest."""

import sys

import pytest

from testbed.core.errors import SpecError
from testbed.core.numbers import Real, Whole, cut, read_real, read_whole, shown

DIGITS = "9" * (sys.get_int_max_str_digits() + 1)  # more than int() takes


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("-7", -7), ("+7", 7), ("007", 7), ("9" * 64, int("9" * 64))]
)
def test_whole_numbers(text, number):
    assert read_whole(text) == number


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1_0", "1.0", "1e3", "0x10", "nan", "inf", "٣", "--1", "9" * 65, DIGITS],
)
def test_other_values_are_no_whole_numbers(text):
    assert read_whole(text) is None


@pytest.mark.parametrize(
    ("text", "number"), [("0.5", 0.5), (".5", 0.5), ("5.", 5.0), ("-1e-3", -0.001), ("1e-999", 0.0)]
)
def test_finite_numbers(text, number):
    assert read_real(text) == number


@pytest.mark.parametrize(
    "text",
    ["", ".", "e5", "nan", "inf", "-inf", "Infinity", "1e309", "1_0.5", "0x1p3", "٣", DIGITS],
)
def test_other_values_are_no_finite_numbers(text):
    assert read_real(text) is None


def test_errors_name_the_bounds():
    assert Whole(1, 32)("32") == Whole(1, 32)(32) == 32
    assert Real(0, 1)("0.5") == Real(0, 1)(0.5) == 0.5
    for call, text in [
        (lambda: Whole(1, 32)("33"), "'33': must be a whole number from 1 to 32"),
        (lambda: Whole()("1e3"), "'1e3': must be a whole number"),
        (lambda: Real(0, 1)("1.5"), "'1.5': must be a finite number from 0 to 1"),
        (lambda: Real()("nan"), "'nan': must be a finite number"),
        (lambda: Real(0, 1)(float("nan")), "nan: must be a finite number from 0 to 1"),
    ]:
        with pytest.raises(SpecError) as refused:
            call()
        assert str(refused.value) == text


def test_several():
    assert Whole(1, 8).several("1, 8,3", "--hosts") == [1, 8, 3]
    assert Real().several("0,0.5", "--loss") == [0.0, 0.5]
    for call, text in [
        (
            lambda: Whole(1, 8).several("1,9", "-x"),
            "-x: '1,9': must be whole numbers from 1 to 8, comma-separated",
        ),
        (
            lambda: Whole().several("1,,2", "--hosts"),
            "--hosts: '1,,2': must be whole numbers, comma-separated",
        ),
        (
            lambda: Real().several("1e309", "--loss"),
            "--loss: '1e309': must be finite numbers, comma-separated",
        ),
    ]:
        with pytest.raises(SpecError) as refused:
            call()
        assert str(refused.value) == text


def test_long_values_are_truncated_in_errors():
    assert cut("x" * 80) == "x" * 80
    assert cut("x" * 81) == "x" * 77 + "..."
    assert shown("a\nb") == r"'a\nb'"
