"""Tables, figures and reports made from a run's results."""
