from forebay.testing.conformance import *

pytest_plugins = ["forebay.testing.plugin"]
