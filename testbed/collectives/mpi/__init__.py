"""Open MPI's all-reduce, and how its processes get into the hosts."""
