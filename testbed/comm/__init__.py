"""What all collectives and exchanges share: groups and how they meet, backends' interface,
counters, CPUs.
"""
