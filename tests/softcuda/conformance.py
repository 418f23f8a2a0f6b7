"""The conformance suite with the CUDA backend, in a process that finds the software driver."""

from forebay.backends import override_driver
from forebay.backends.nvidia.driver import CudaDriver
from forebay.testing.conformance import *  # noqa: F403 - the list is the suite

pytest_plugins = ["forebay.testing.plugin"]

_override = override_driver(CudaDriver())
_override.__enter__()  # for the whole process
