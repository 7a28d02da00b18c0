"""Faults that the matrices combine, from none to heavy."""

__all__ = ["EVENTS", "NONE", "levels"]

NONE = (0.0, "")

EVENTS = [
    "link-down host=h2 for=200ms",
    "partition sets=h1,h2|h3,h4 for=500ms",
    "pause host=h3 for=500ms",
]
"""Interruptions from which ranks recover."""


def levels(latest: str) -> dict[str, list[tuple[float, str]]]:
    """Levels of each fault: the probability that it hits a frame, and the fault as text.

    :param latest: Mean and jitter of the longest delays.
    """
    return {
        "loss": [NONE, (0.01, "drop p=0.01"), (0.2, "drop p=0.2")],
        "duplication": [NONE, (0.01, "duplicate p=0.01"), (0.2, "duplicate p=0.2")],
        "corruption": [NONE, (0.01, "corrupt p=0.01"), (0.01, "corrupt p=0.01 bits=2")],
        "reorder": [NONE, (0.05, "reorder p=0.05 behind=5")],
        "delay": [
            NONE,
            (0.05, "delay p=0.05 delay=1ms"),
            (0.02, f"delay p=0.02 delay={latest} jitter={latest} distribution=uniform"),
        ],
        "burst": [NONE, (0.01 / 0.21, "burst enter=0.01 leave=0.2")],
    }
