"""Random number generators and fills, equal to PyTorch's Philox."""
