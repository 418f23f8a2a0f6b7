"""Acme's cards as forebay's devices of kind mtia. Importing this opens nothing."""
