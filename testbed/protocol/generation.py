"""Numbers of collectives: 32 bits that wrap."""

__all__ = ["NEWEST", "generation_after", "is_before"]

NEWEST = 0xFFFFFFFF


def generation_after(generation: int) -> int:
    """The next number. 0 means "none", so it is left out, and 1 with it: neighbours differ in their lowest bit."""
    return 2 if generation == NEWEST else generation + 1


def is_before(generation: int, other: int) -> bool:
    """Is ``generation`` the earlier one, taking numbers half the range apart at most (RFC 1982)?"""
    return bool((generation - other) & 0x80000000)
