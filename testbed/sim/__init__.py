"""Discrete-event simulation of a fabric, in SimPy: it adds time to the protocols and to the faults,
whose rules are in `testbed.protocol` and `testbed.faults`.
"""
