"""What all workloads that train a graph network share: data, the check of equal weights,
accuracy.
"""
