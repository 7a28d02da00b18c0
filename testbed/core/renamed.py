"""Former names of options and their present names.

Scenario keys, flags, marks, faults and arguments of groups have one name each. A former name is
refused, and the error gives the present one.
"""

__all__ = ["RENAMED", "renamed"]

RENAMED = {
    "gap": "reorder_threshold",
    "generation": "seq",
    "kind": "workload",
    "transport": "backend",
    "transports": "backends",
}
"""The present name of an option by its former one, as keys spell them: flags have hyphens for
underscores.
"""


def renamed(name: str) -> str | None:
    """Return the present name of an option, spelt like the former one; None if the name is not a
    former one.

    :param name: A key, or a flag with its hyphens: ``--transports`` gives ``--backends``.
    """
    bare = name.lstrip("-")
    now = RENAMED.get(bare.replace("-", "_"))
    if now is None:
        return None
    return name.removesuffix(bare) + (now.replace("_", "-") if name.startswith("--") else now)
