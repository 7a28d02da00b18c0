"""BPF objects from Python: compile with clang, load through libbpf, maps as numpy arrays, links, test runs."""
