"""Faults: what happens to frames in transit, decided by a pure function of their identity, so that
it can be replayed.
"""
