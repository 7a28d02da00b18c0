"""The backends, one module each, with one interface: the in-kernel ring and the socket
baselines.
"""
