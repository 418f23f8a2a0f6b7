"""Start of a Python process that a program under `forebay run --emulate` starts: installs the hook for PyTorch.

`forebay.interop.torch.on_import.set_environment` puts this folder on PYTHONPATH. The program's own sitecustomize, which
this file hides, is imported instead of it.
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location

_folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- pathlib is slow to import at each start
sys.path[:] = [each for each in sys.path if each != _folder]

if os.environ.get("FOREBAY_TORCH"):
    _spec = spec_from_file_location("_forebay_on_import", os.path.join(os.path.dirname(_folder), "on_import.py"))  # noqa: PTH118, PTH120 -- as above
    _hook = module_from_spec(_spec)  # type: ignore[arg-type]  # the file exists
    _spec.loader.exec_module(_hook)  # type: ignore[union-attr]  # as above
    _hook.install()

_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 -- the program's
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _this
