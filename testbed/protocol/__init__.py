"""The protocols' rules without any I/O: what the workers, the simulator and the tests' reference
model all use.
"""
