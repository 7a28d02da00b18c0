"""The programs attached to the links of a fabric: the dispatcher of a host, and the program of a
switch.
"""

from testbed.datapath.links import set_datapath

__all__ = ["set_datapath"]
