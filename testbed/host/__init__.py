"""The machine that everything runs on: description, memory, processes, control groups, rights and
cache.
"""
