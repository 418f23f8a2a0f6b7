"""Acme's cards as penstock's devices of kind mtia. Importing this opens nothing."""
