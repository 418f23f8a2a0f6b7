"""Questions to a snapshot: totals by site, memory over time."""
