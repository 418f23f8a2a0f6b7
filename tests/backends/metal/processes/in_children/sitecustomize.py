"""Python imports this module at its start, in child processes of tests: the stand-in of tests/softmetal is a Mac."""

import platform

from forebay.backends.metal import discovery

discovery.system = lambda: ("macOS", platform.mac_ver()[0] or "15.5")
