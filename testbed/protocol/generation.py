"""Numbers of collectives: 32 bits that wrap."""

__all__ = ["NEWEST", "generation_after", "is_before", "must_forget"]

NEWEST = 0xFFFFFFFF


def generation_after(generation: int) -> int:
    """The next number. 0 means "none", so it is left out, and 1 with it: neighbours differ in their lowest bit."""
    return 2 if generation == NEWEST else generation + 1


def is_before(generation: int, other: int) -> bool:
    """Is ``generation`` the earlier one, taking numbers half the range apart at most (RFC 1982)?"""
    return bool((generation - other) & 0x80000000)


def must_forget(before: int, after: int) -> bool:
    """Whether all that carries a number has to be looked through when ``after`` follows ``before``.

    What has not been used for half of the range passes for something of the future (`is_before`), and for something of this
    very generation when numbers come round. So at each fourth of the range what is of neither ``before`` nor ``after`` is reset.
    """
    return before >> 30 != after >> 30
