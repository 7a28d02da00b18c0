"""One module a transport, one interface: the in-kernel ring and the socket baselines."""
