"""Programs that are run many times."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from testbed.kernel import Program
from testbed.kernel.libbpf import TestRunOpts, check, libbpf


class Runner:
    """A program, run on frames where they lie: a `Program.test_run` without its copies."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.room = ctypes.create_string_buffer(4096)
        self.options = TestRunOpts(
            sz=ctypes.sizeof(TestRunOpts), repeat=1, data_out=ctypes.addressof(self.room)
        )
        self.run = libbpf().bpf_prog_test_run_opts

    def __call__(self, frames: NDArray[np.uint8], lengths: NDArray[np.int64]) -> set[int]:
        """The verdicts that there were."""
        options, by_reference, fd, run = (
            self.options,
            ctypes.byref(self.options),
            self.program.fd,
            self.run,
        )
        verdicts, start = set(), frames.ctypes.data
        for index, length in enumerate(lengths.tolist()):
            place = start + index * frames.strides[0]
            options.data_in, options.data_size_in, options.data_size_out = (
                place,
                length,
                len(self.room),
            )
            check(run(fd, by_reference), "test run")
            verdicts.add(options.retval)
        return verdicts
