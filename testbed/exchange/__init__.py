"""Neighbourhood aggregation between hosts: one interface, in the kernel (`pinch`) and
over sockets.
"""
