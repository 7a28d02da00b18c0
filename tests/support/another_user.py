"""Commands as another user, also in a checkout that no other user may enter."""

import os

__all__ = ["NOBODY", "as_another_user"]

NOBODY = 65534


def as_another_user(*command: str) -> list[str]:
    """Return a command that runs another as a user without rights; the same one without root.

    The user may read everything, as the checkout may be anywhere, such as below root's home. What
    it may not do is what these tests are about: write to others' files, and everything for which
    the testbed asks for root.
    """
    if os.geteuid():
        return list(command)
    capability = "+dac_read_search"
    identity = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    rights = ["--inh-caps", capability, "--ambient-caps", capability]
    return ["setpriv", *identity, *rights, "--", *command]
