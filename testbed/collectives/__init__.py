"""One module a backend, one interface: the in-kernel ring and the socket baselines."""
