"""Sums that a program forms are those of the reference model, whatever lanes, steps and weights."""

import random
from dataclasses import replace

import numpy as np
import pytest

from testbed.kernel import BpfObject
from testbed.kernel.abi import Struct, constant, dtype
from testbed.protocol.token.adding import Edge, Form, Part, Words, form_sums, shifts_of
from tests.support.tiers import broad

pytestmark = pytest.mark.kernel

RANKS, SLOTS, ROOM = 4, 6, 24  # the latter in words
FORMS = [
    Form(words, wide, weighted, maximum)
    for words in (16, 1, 5)
    for wide in (False, True)
    for weighted, maximum in ((False, False), (True, False), (False, True))
]


def loaded(form: Form, parts: int, edges: int, ranks: int = RANKS) -> BpfObject:
    slots = ranks + SLOTS - RANKS
    config = Struct(
        "token_config",
        ranks=ranks,
        room=8 * ROOM,
        slots=slots,
        outs=1,
        partners=ranks - 1,
        parts=parts,
        words=form.words,
        farthest=8 * (ROOM - form.words),
        wide=form.wide,
        weighted=form.weighted,
        maximum=form.maximum,
    )
    for rank in range(1, ranks):  # the step of each is in the last word of its slot
        config.pairs[rank]["stepped"] = rank < ranks - 1
        config.pairs[rank]["step_slot"], config.pairs[rank]["step_at"] = rank, 8 * (ROOM - 1)
    sizes = {
        "token_landing": 2 * slots,
        "token_slots": 2 * slots,
        "token_parts": parts,
        "token_edges": edges,
        "token_weights": edges,
        "token_sums": parts,
    }
    buffers = {
        "token_landing": 8 * ROOM,
        "token_payloads": 8 * ROOM,
        "token_sums": 16 * form.words,
    }
    return BpfObject("tokens", config, sizes, buffers)


@pytest.mark.parametrize("ranks", [2, 31, 32])
@pytest.mark.parametrize("form", [FORMS[0], FORMS[-1]])
def test_programs_load_for_any_number_of_ranks(ranks: int, form: Form) -> None:
    with loaded(form, 4, 8, ranks):
        pass


def draw_parts(chance: random.Random) -> list[Part]:
    """Few edges and many, over several runs of the program."""
    most, slice_ = constant("TOKEN_PART"), constant("TOKEN_SLICE")
    counts = [*range(1, 26), most, most - 1] + [most] * (slice_ // most)
    chance.shuffle(counts)
    firsts = np.cumsum([0, *counts])
    return [Part(int(first), count) for first, count in zip(firsts, counts, strict=False)]


def draw_slots(chance: random.Random, form: Form) -> Words:
    most = (1 << form.bits) - 1
    lanes = [
        chance.choice((0, most, chance.randint(0, most)))
        for _ in range(SLOTS * ROOM * (2 if form.wide else 4))
    ]
    words = np.array(lanes, np.uint32 if form.wide else np.uint16).view(np.uint64)
    return words.reshape(SLOTS, ROOM)


@pytest.mark.parametrize("form", broad(FORMS), ids=str)
def test_sums_equal_the_reference_models(form: Form) -> None:
    chance = random.Random(str(form))
    parts = draw_parts(chance)
    weight = 1 << (24 if form.wide else 5)
    edges = [
        Edge(
            chance.randrange(SLOTS),
            chance.randint(0, ROOM - 1 - form.words),
            chance.randint(1, RANKS - 2),
            chance.randint(-weight, weight),
        )
        for _ in range(parts[-1].first + parts[-1].count)
    ]
    for number, part in enumerate(parts if form.weighted else ()):
        plain = chance.choice((0, part.count, chance.randint(0, part.count)))
        parts[number] = replace(part, plain=plain)
        for place in range(part.first, part.first + plain):
            edges[place] = edges[place]._replace(weight=1)
    if form.weighted and not form.wide:
        below = [
            sum(max(-edge.weight, 0) for edge in edges[part.first : part.first + part.count])
            for part in parts
        ]
        most = (1 << form.bits) - 1
        parts = [replace(part, start=each * most) for part, each in zip(parts, below, strict=True)]
    if not form.weighted:
        parts = [replace(part, plain=part.count) for part in parts]
    with loaded(form, len(parts), len(edges)) as program:
        maps = program.maps
        table = maps["token_parts"].view(dtype("token_part")).reshape(-1)
        for name in ("first", "count", "start", "plain"):
            table[name] = [getattr(part, name) for part in parts]
        table = maps["token_edges"].view(dtype("token_edge")).reshape(-1)
        for name in ("slot", "at", "rank"):
            table[name] = [getattr(edge, name) for edge in edges]
        maps["token_weights"].view(np.int64).reshape(-1)[:] = [edge.weight for edge in edges]
        control = Struct(maps["token_control"].view(dtype("token_control")))
        landing = maps["token_landing"].view().reshape(2, SLOTS, ROOM)
        for seq, difference in enumerate((0, 1, form.bits - 1, form.bits, 200), start=7):
            steps = {1: 210, 2: 210 - difference}
            slots = draw_slots(chance, form)
            for rank, exponent in steps.items():
                slots[rank, ROOM - 1] = exponent << 23
            landing[seq & 1] = slots
            control.open, control.added = seq, 0
            while control.added < len(parts):
                before = int(control.added)
                program.programs["token_add"].test_run(bytes(64))
                assert control.added > before
            expected = form_sums(form, parts, edges, slots, shifts_of(steps))
            found = maps["token_sums"].view().reshape(len(parts), -1)
            np.testing.assert_array_equal(found, expected)
