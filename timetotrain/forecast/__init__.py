"""The verb `forecast`: what a run takes on a machine, and which machine to rent."""
