"""The cache of pinned (page-locked) host memory."""
