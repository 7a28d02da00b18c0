"""What workloads share that train a graph network: data, weights that stay equal, accuracy."""
