"""What lab/bench/ reads from compiled programs: costs from a step's HLO, and an export's programs as jax runs them."""
