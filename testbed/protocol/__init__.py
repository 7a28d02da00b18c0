"""The protocols' rules without I/O, which the workers, the simulator and the tests' reference model
all use.
"""
