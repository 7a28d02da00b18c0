"""Partitioning graphs that are larger than memory: edges are read as a stream, and each part is
written to a folder while they pass.
"""
