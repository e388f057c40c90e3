"""Writes pages and tables about results: `report` and `compare`."""
