"""Named ranges of time that a program marks, and the tools that observe them."""
