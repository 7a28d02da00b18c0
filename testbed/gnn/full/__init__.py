"""Full-graph training: every epoch is one step on all vertices, which are distributed over
ranks.
"""
