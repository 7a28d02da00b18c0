"""Message sizes in the syntax of nccl-tests: ``-b 64K -e 64M -f 4``."""

import re
from collections.abc import Sequence

from testbed.core.errors import SpecError
from testbed.core.numbers import format_size, shown
from testbed.host.estimates import SHARE, tensor_copies

__all__ = ["check_room", "parse_size", "size_series"]

ELEMENT = 4  # bytes of a float32
MAX_SIZE = (1 << 31) * ELEMENT - ELEMENT  # a collective counts elements in 31 bits
_SIZE = re.compile(r"([0-9]{1,20})([KMG]?)(?:i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30}


def parse_size(text: str, flag: str) -> int:
    """Parse a number of bytes with an optional suffix K, M or G (2**10, 2**20, 2**30).

    :param flag: The option that the text was given to, for the error.
    :raises SpecError: The text is none, or not a multiple of a float32's size.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise SpecError(
            f"{flag}: {shown(text)} is no size: must be a number of bytes, with K, M or G, such"
            " as 64K"
        )
    size = int(match[1]) << _POWERS[match[2].upper()]
    if size % ELEMENT:
        raise SpecError(
            f"{flag}: {text!r} is {size} bytes: must be a multiple of {ELEMENT}, a float32"
        )
    return size


def size_series(first: int, last: int, factor: int) -> list[int]:
    """List the sizes from `first` to at most `last`, each `factor` times the previous one.

    :raises SpecError: The series would be empty or endless.
    """
    if factor < 2:
        raise SpecError(f"-f: {factor}: must be a factor of at least 2")
    if first > last:
        raise SpecError(f"-b: {first} bytes: must be at most -e, {last} bytes")
    if first == 0:
        return [0] if last == 0 else [0, *size_series(ELEMENT, last, factor)]
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= factor
    return sizes


def check_room(last: int, hosts: int, backends: Sequence[str], most: int, flag: str = "-e") -> None:
    """Check that the largest tensor can be counted, and that the machine's memory holds it for all
    ranks.

    :param last: Bytes of it.
    :param most: Bytes of memory that may be asked for: `testbed.host.estimates.allowance`.
    :param flag: The option that gave the size, for the error.
    :raises SpecError: It does not; the text names the largest that does.
    """
    if last > MAX_SIZE:
        raise SpecError(
            f"{flag}: {format_size(last)}: must be at most {MAX_SIZE} bytes, 2^31 - 1 elements"
        )
    times = tensor_copies(hosts, len(backends))
    if last * times > most:
        raise SpecError(
            f"{flag}: {format_size(last)}: must be at most {most // times >> 20}M: {hosts} hosts"
            f" with {len(backends)} backends hold a tensor {times} times, in {most >> 20} MiB of"
            f" memory, {SHARE:.0%} of what is available"
        )
