"""Collection: the stand-ins of frameworks answer no other attribute than Metal's."""

collect_ignore_glob = ["frameworks/*"]
