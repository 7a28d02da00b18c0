"""What benches say at their end: how many times as fast as the best over sockets. Pure."""

from collections.abc import Callable, Iterable, Mapping

from testbed.core.medians import Median, compare, counts

__all__ = ["Case", "against_sockets"]

Case = tuple[str, Mapping[str, Median], Mapping[str, Median]]
"""Words for what was done, and the times of those in the kernel and of those over sockets."""


def against_sockets(
    title: str,
    cases: Iterable[Case],
    unit: tuple[float, str, int],
    verdict: Callable[[str, Median, Median], str] = lambda *_: "",
) -> list[str]:
    """Compare each in the kernel with the best over sockets, by median, wherever both were
    measured; nothing unless they were.

    :param title: What stands above the lines.
    :param unit: Of the times: how many are a second, its name, and digits.
    :param verdict: What is said behind a comparison, from the case's words and both times.
    """
    lines, compared = [], []
    factor, name, digits = unit
    for words, kernels, sockets in cases:
        if not sockets:
            continue
        best = min(sockets, key=lambda each: sockets[each].value)
        for kernel, time in kernels.items():
            how, pair = compare(time, sockets[best]), ((kernel, time), (best, sockets[best]))
            times = ", ".join(
                f"{each} {one.value * factor:.{digits}f} {name}" for each, one in pair
            )
            said = verdict(words, time, sockets[best])
            lines.append(f"#   {words}  {how.ratio:5.2f}x  {times}{how.note}{said}")
            compared += [time, sockets[best]]
    return [f"# {title}, medians of {counts(compared)}:", *lines] if lines else []
