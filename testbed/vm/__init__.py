"""A stock Debian kernel under QEMU, with this machine's files: other kernels, netem and modules for
developers whose kernel has none of these.
"""

from testbed.vm.image import QEMU, SERIES, KernelImage, VmError, find_image
from testbed.vm.qemu import VmDied, VmTimeout, run_in_vm

__all__ = [
    "QEMU",
    "SERIES",
    "KernelImage",
    "VmDied",
    "VmError",
    "VmTimeout",
    "find_image",
    "run_in_vm",
]
