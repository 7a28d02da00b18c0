"""Faults: what happens to frames on their way, decided by a pure function of their identity, and
replayable.
"""
