"""Registration of the tensors' reductions with `multiprocessing`, before the first device is opened.

Importing this module arranges it. There are no tensors before, and `multiprocessing` takes a tenth of the time of
importing forebay.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from forebay.runtime.devices.open_device import BEFORE_OPENING

BEFORE_OPENING.append(partial(import_module, "forebay.interop.multiprocessing"))
