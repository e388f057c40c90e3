"""Work of several replicas: backends, spatial partitioning, gradient sums, weight updates."""
