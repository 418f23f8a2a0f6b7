"""Attribution of the memory of a PyTorch program: a ledger of its allocations, and the result by category and line."""
