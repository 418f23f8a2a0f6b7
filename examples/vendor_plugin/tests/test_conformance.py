from penstock.testing.conformance import *

pytest_plugins = ["penstock.testing.plugin"]
