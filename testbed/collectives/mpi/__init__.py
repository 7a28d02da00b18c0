"""Open MPI's all-reduce, and how its processes enter the hosts."""
