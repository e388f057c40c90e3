"""Reviews a round: several uploads merged, every verdict, factor and convergence point in one table."""
