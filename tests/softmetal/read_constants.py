"""Write constants.py from the metadata of pyobjc-framework-Metal.

    python tests/softmetal/read_constants.py PATH/Metal/_metadata.py

The metadata is in the package's wheels for macOS, which `pip download --no-deps --only-binary :all: --platform
macosx_11_0_universal2 pyobjc-framework-Metal` gets on any machine.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PREFIXES = (
    *("MTLArgumentBuffers", "MTLBarrierScope", "MTLBinding", "MTLBlitOption", "MTLCPUCacheMode", "MTLCapture"),
    *("MTLCommandBuffer", "MTLCompileSymbol", "MTLCounter", "MTLDataType", "MTLDeviceError", "MTLDeviceLocation"),
    *("MTLDispatchType", "MTLFunctionType", "MTLGPUFamily", "MTLHazardTrackingMode", "MTLHeapType"),
    *("MTLIndirectCommandType", "MTLLanguageVersion", "MTLLibrary", "MTLMath", "MTLPipelineOption"),
    *("MTLPurgeableState", "MTLReadWriteTextureTier", "MTLResource", "MTLStorageMode"),
)
_HEADER = '''"""Constants of Metal, which read_constants.py has read from the metadata of pyobjc-framework-Metal."""

'''


def constants_in(metadata: str) -> dict[str, int]:
    """Return the enumeration constants that the stand-in has, with their values."""
    found = re.search(r'^enums = """(.*?)"""', metadata, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("the metadata has no table of enumerations")
    pairs = (entry.split("@") for entry in found[1].split("$") if "@" in entry)
    return {name: int(value) for name, value in pairs if name.startswith(PREFIXES)}


def text_of(constants: dict[str, int]) -> str:
    return _HEADER + "".join(f"{name} = {value}\n" for name, value in sorted(constants.items()))


if __name__ == "__main__":
    metadata = Path(sys.argv[1]).read_text(encoding="utf-8")
    Path(__file__).with_name("constants.py").write_text(text_of(constants_in(metadata)), encoding="utf-8")
