"""Guards around backends from other packages."""
