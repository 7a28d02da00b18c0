"""``testbed bench``: transports measured against each other, in turns, on one fabric."""
