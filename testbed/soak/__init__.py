"""Soak tests: random scenarios from the whole space of fabrics, collectives and faults, with exact
checks.
"""
