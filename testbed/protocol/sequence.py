"""Sequence numbers of collectives, which have 32 bits and wrap, and words that combine such a
number with 32 bits of state, and only move forward.
"""

__all__ = ["NEWEST", "is_before", "is_forward", "must_forget", "seq_after", "seq_of", "word_of"]

NEWEST = 0xFFFFFFFF


def seq_after(seq: int) -> int:
    """The next number. 0 means "none", so a wrap skips it. It skips 1 as well, so that consecutive
    numbers still differ in their lowest bit.
    """
    return 2 if seq == NEWEST else seq + 1


def is_before(seq: int, other: int) -> bool:
    """Is ``seq`` the earlier number, assuming that the two are at most half the range apart (RFC
    1982)?
    """
    return bool((seq - other) & 0x80000000)


def must_forget(before: int, after: int) -> bool:
    """Whether all state that carries a number must be checked, and old state reset, when ``after``
    follows ``before``.

    State that has not been used for half of the range looks like state from the future
    (`is_before`), and after a full wrap like state of the current number. So at each quarter of the
    range, state that belongs neither to ``before`` nor to ``after`` is reset.
    """
    return before >> 30 != after >> 30


def seq_of(word: int) -> int:
    """The sequence number of a word."""
    return word >> 32


def word_of(seq: int, lower: int) -> int:
    """A word: a sequence number, and 32 bits that only grow while that number is current."""
    return seq << 32 | lower


def is_forward(before: int, after: int) -> bool:
    """Would this change move a word forward? A word that is 0 was never written."""
    if not before or is_before(seq_of(before), seq_of(after)):
        return True
    return seq_of(before) == seq_of(after) and before < after
