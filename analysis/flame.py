"""Flame graphs of a run: one for each host and switch, in one SVG that opens alone in a browser.

A rectangle is a function, as wide as its share of the samples; what it called stands on top of it.
A click on a rectangle widens it to the whole width; a click on a graph's title undoes it.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pandas as pd

from analysis.style import CLASS_COLOURS
from testbed.results import Run
from testbed.telemetry.classify import UNCLASSIFIED, Classes, load_classes
from testbed.telemetry.stacks import unfold

__all__ = ["Frame", "flame_graph", "folded_lines", "trees"]

_WIDTH: Final = 1180.0
_MARGIN: Final = 10.0
_HEIGHT: Final = 17  # of a frame
_CHARACTER: Final = 6.7  # width of one, at the size that is used
_LEAST: Final = 0.5  # a narrower frame is left out
_ACROSS: Final = 5  # entries of the legend in a row
_PLAIN: Final = "#e8e8e8"
_PROGRAM: Final = re.compile(r"^bpf_prog_[0-9a-f]{16}_?")
_DARK: Final = frozenset(
    {"#0072b2", "#00402f", "#006e50", "#5e3c99", "#333333", "#8c6bb1", "#009e73"}
)


@dataclass
class Frame:
    """A function, called from one place, with what it called.

    :param samples: While it or what it called ran.
    """

    name: str
    colour: str = _PLAIN
    samples: int = 0
    calls: dict[str, Frame] = field(default_factory=dict)

    def call(self, name: str, colour: str, samples: int) -> Frame:
        """Count samples of a function that this one has called, and return it."""
        found = self.calls.setdefault(name, Frame(name, colour))
        found.samples += samples
        return found


class _Colours:
    """The colour of a function: its class's, or that of the function that called it."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._known: dict[tuple[str, bool], str | None] = {}

    def of(self, name: str, kernel: bool, caller: str) -> str:
        key = name, kernel
        if key not in self._known:
            found = self._classes.of((name,), ()) if kernel else self._classes.of((), (name,))
            self._known[key] = (
                None if found == UNCLASSIFIED else CLASS_COLOURS.get(found.partition(".")[0])
            )
        return self._known[key] or caller


def trees(stacks: pd.DataFrame, inside: bool = False) -> dict[str, Frame]:
    """The frames of each node.

    Above a node stand the backends, if there are several; above these, what was done in softirq
    apart from what processes did; then functions.

    :param stacks: As of `testbed.results.load_stacks`.
    :param inside: Only what was inside collectives.
    """
    colours, found = _Colours(load_classes()), dict[str, Frame]()
    several = stacks["backend"].nunique() > 1
    counts = stacks["inside" if inside else "samples"]
    rows = zip(
        stacks["node"], stacks["backend"], stacks["softirq"], stacks["stack"], counts, strict=True
    )
    for node, backend, softirq, stack, count in rows:
        if not count:
            continue
        frame = found.setdefault(node, Frame(node))
        frame.samples += count
        if several:
            frame = frame.call(backend, _PLAIN, count)
        frame = frame.call("in softirq" if softirq else "processes", _PLAIN, count)
        for name, kernel in unfold(stack):
            colour = colours.of(name, kernel, frame.colour)
            frame = frame.call(
                _PROGRAM.sub("", name) + (" [BPF]" if _PROGRAM.match(name) else ""), colour, count
            )
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(node: str) -> tuple[str, int]:
    letters = node.rstrip("0123456789")
    return letters, int(node[len(letters) :] or 0)


def folded_lines(stacks: pd.DataFrame, inside: bool = False) -> Iterator[str]:
    """Lines that other tools for flame graphs read: functions, a space, samples."""
    counts = stacks["inside" if inside else "samples"]
    rows = stacks.assign(count=counts).groupby(["node", "backend", "softirq", "stack"], sort=True)
    for (node, backend, softirq, stack), count in rows["count"].sum().items():
        if count:
            where = "in softirq" if softirq else "processes"
            yield ";".join(filter(None, (node, backend, where, stack))) + f" {count}"


def flame_graph(run: Run, stacks: pd.DataFrame, inside: bool = False) -> str:
    """The SVG of a run's nodes.

    :param inside: Only what was inside collectives.
    """
    found = trees(stacks, inside)
    rate = int(stacks["rate"].iloc[0])
    shown = dict.fromkeys(
        each.partition(".")[0]
        for each in stacks["class"]
        if each.partition(".")[0] in CLASS_COLOURS
    )
    legend = [name for name in CLASS_COLOURS if name in shown]
    parts, top = [], 74.0 + 18 * math.ceil(len(legend) / _ACROSS)
    for node, frame in found.items():
        heading = f"{node}: {frame.samples / rate:.3g} s of CPU time, {frame.samples} samples"
        panel, height = _panel(frame, heading, top, rate)
        parts.append(panel)
        top += height
    where = "inside collectives" if inside else "in sampled epochs"
    caption, width = _caption(run, stacks, rate), _WIDTH + 2 * _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {top:g}"'
            f' width="{width:g}" height="{top:g}" font-family="monospace" font-size="11">',
            f"<style>{_STYLE}</style>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text x="{_MARGIN:g}" y="24" font-size="16">{html.escape(_name(run))}: CPU time'
            f" {where}, by function</text>",
            f'<text x="{_MARGIN:g}" y="42" fill="#555555">{html.escape(caption)}</text>',
            *_legend(legend),
            *parts,
            f"<script><![CDATA[{_SCRIPT}]]></script>",
            "</svg>\n",
        ]
    )


def _name(run: Run) -> str:
    return str(run.manifest["scenario"]["scenario"]["name"])


def _caption(run: Run, stacks: pd.DataFrame, rate: int) -> str:
    scenario = run.manifest["scenario"]
    return ", ".join(
        [
            "emulated on one machine",
            f"{scenario['fabric']['hosts']} hosts",
            str(run.manifest.get("kernel", "")),
            f"seed {run.manifest.get('seed')}",
            f"trials {scenario['scenario'].get('trials', 1)}",
            f"backends {' '.join(dict.fromkeys(stacks['backend']))}",
            f"{rate} samples per second of each CPU",
        ]
    )


def _legend(names: Sequence[str]) -> Iterator[str]:
    titles: Mapping[str, str] = load_classes().titles
    for index, name in enumerate(names):
        x, y = _MARGIN + index % _ACROSS * _WIDTH / _ACROSS, 54 + index // _ACROSS * 18
        yield (
            f'<rect x="{x:g}" y="{y}" width="12" height="12" fill="{CLASS_COLOURS[name]}"'
            f' stroke="#999999"/><text x="{x + 17:g}" y="{y + 10}">'
            f"{html.escape(titles.get(name, name))}</text>"
        )


def _panel(root: Frame, heading: str, top: float, rate: int) -> tuple[str, float]:
    """One graph, and its height."""
    boxes = list(_boxes(root, 0, 0))
    levels = 1 + max(level for _, level, _ in boxes)
    bottom = top + 22 + levels * _HEIGHT
    lines = [
        f'<g class="panel"><text class="title" x="{_MARGIN:g}" y="{top + 14:g}" font-size="13">'
        f"{html.escape(heading)}</text>"
    ]
    for frame, level, start in boxes:
        x, width = start / root.samples, frame.samples / root.samples
        left, wide = _MARGIN + x * _WIDTH, width * _WIDTH
        y = bottom - (level + 1) * _HEIGHT
        share = f"{frame.name}: {frame.samples / rate:.3g} s, {100 * width:.2f} %"
        ink = ' fill="#ffffff"' if frame.colour in _DARK else ""
        lines.append(
            f'<g class="f" data-x="{x:.7f}" data-w="{width:.7f}" data-l="{level}">'
            f"<title>{html.escape(share)}</title>"
            f'<rect x="{left:.2f}" y="{y:g}" width="{max(wide - 0.3, 0.2):.2f}"'
            f' height="{_HEIGHT - 1}" fill="{frame.colour}"/>'
            f'<text x="{left + 3:.2f}" y="{y + 12:g}"{ink} data-n="{html.escape(frame.name)}">'
            f"{html.escape(_fitting(frame.name, wide))}</text></g>"
        )
    lines.append("</g>")
    return "\n".join(lines), bottom - top + 26


def _boxes(
    frame: Frame, level: int, start: int, whole: int = 0
) -> Iterator[tuple[Frame, int, int]]:
    whole = whole or frame.samples
    yield frame, level, start
    for each in sorted(frame.calls.values(), key=lambda call: call.name):
        if each.samples / whole * _WIDTH >= _LEAST:
            yield from _boxes(each, level + 1, start, whole)
        start += each.samples


def _fitting(name: str, width: float) -> str:
    room = int((width - 4) / _CHARACTER)
    return name if len(name) <= room else name[: room - 1] + "…" if room > 2 else ""


_STYLE: Final = (
    "text{pointer-events:none}.title{pointer-events:auto;cursor:pointer}"
    ".f{cursor:pointer}.f:hover rect{stroke:#000000}"
)

_SCRIPT: Final = (
    """
function show(panel, from, wide, level) {
  for (const g of panel.querySelectorAll(".f")) {
    const x = +g.dataset.x, w = +g.dataset.w, below = +g.dataset.l < level;
    const holds = below && x <= from + 1e-7 && x + w >= from + wide - 1e-7;
    const within = !below && x >= from - 1e-7 && x + w <= from + wide + 1e-7;
    g.style.display = holds || within ? "" : "none";
    const left = MARGIN + (holds ? 0 : (x - from) / wide * WIDTH);
    const width = holds ? WIDTH : w / wide * WIDTH;
    const rect = g.querySelector("rect"), text = g.querySelector("text");
    rect.setAttribute("x", left);
    rect.setAttribute("width", Math.max(width - 0.3, 0.2));
    text.setAttribute("x", left + 3);
    const name = text.dataset.n, room = Math.floor((width - 4) / CHARACTER);
    text.textContent = name.length <= room ? name : room > 2 ? name.slice(0, room - 1) + "…" : "";
  }
}
for (const panel of document.querySelectorAll(".panel")) {
  panel.querySelector(".title").addEventListener("click", () => show(panel, 0, 1, 0));
  for (const g of panel.querySelectorAll(".f"))
    g.addEventListener("click", () => show(panel, +g.dataset.x, +g.dataset.w, +g.dataset.l));
}
""".replace("MARGIN", f"{_MARGIN:g}")
    .replace("WIDTH", f"{_WIDTH:g}")
    .replace("CHARACTER", f"{_CHARACTER:g}")
)
