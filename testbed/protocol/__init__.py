"""The rules of the protocols, without I/O. Workers, the simulator and the reference models of the
tests use them.
"""
