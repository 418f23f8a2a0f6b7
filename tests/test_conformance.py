from forebay.testing.conformance import *  # noqa: F403 - the list is the suite

pytest_plugins = ["forebay.testing.plugin"]
