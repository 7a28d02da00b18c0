"""``testbed bench``: backends measured against each other, in turns, on one fabric."""
