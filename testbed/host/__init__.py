"""The machine that all of it runs on: what it is, its memory, processes, control groups, rights and
cache.
"""
