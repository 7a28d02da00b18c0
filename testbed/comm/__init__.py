"""What all collectives and exchanges share: groups and their rendezvous, the interface of backends,
counters, CPUs.
"""
