from penstock.testing.conformance import *  # noqa: F403 - the list is the suite

pytest_plugins = ["penstock.testing.plugin"]
