"""Device memory that programs hold: storage, copies, user pools, peaks, memory of other processes."""
