"""Power logs: the energy of runs, and what the rules ask of readings."""
