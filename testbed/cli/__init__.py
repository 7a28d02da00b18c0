"""The ``testbed`` command: one module a verb."""
