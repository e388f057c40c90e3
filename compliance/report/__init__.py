"""Pages and tables about results: `report` and `compare`."""
