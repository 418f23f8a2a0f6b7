"""Write constants.py and selectors.txt from the metadata of pyobjc-framework-Metal.

    python tests/softmetal/read_metadata.py PATH/Metal/_metadata.py

The metadata is in the package's wheels for macOS, which `pip download --no-deps --only-binary :all: --platform
macosx_11_0_universal2 pyobjc-framework-Metal` gets on any machine. Constants are those with the prefixes below;
selectors are those that the stand-in has and that the metadata describes, with their arguments and results as type
encodings of Objective-C. The metadata has no selectors of classes without special types, such as MTLHeapDescriptor.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

PREFIXES = (
    *("MTLArgumentBuffers", "MTLBarrierScope", "MTLBinding", "MTLBlitOption", "MTLCPUCacheMode", "MTLCapture"),
    *(
        "MTLCommandBuffer",
        "MTLCommandEncoderError",
        "MTLCompileSymbol",
        "MTLCounter",
        "MTLDataType",
        "MTLDeviceError",
        "MTLDeviceLocation",
    ),
    *("MTLDispatchType", "MTLFunctionType", "MTLGPUFamily", "MTLHazardTrackingMode", "MTLHeapType"),
    *("MTLIndirectCommandType", "MTLLanguageVersion", "MTLLibrary", "MTLMath", "MTLPipelineOption"),
    *("MTLPurgeableState", "MTLReadWriteTextureTier", "MTLResource", "MTLStorageMode"),
)
HERE = Path(__file__).parent
_HEADER = '''"""Constants of Metal, which read_metadata.py read from the metadata of pyobjc-framework-Metal 12.2.2."""

'''


def constants_in(metadata: str) -> dict[str, int]:
    """Return the enumeration constants that the stand-in has, with their values."""
    found = re.search(r'^enums = """(.*?)"""', metadata, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("the metadata has no table of enumerations")
    pairs = (entry.split("@") for entry in found[1].split("$") if "@" in entry)
    return {name: int(value) for name, value in pairs if name.startswith(PREFIXES)}


def selectors_in(metadata: str) -> dict[str, str]:
    """Return the selectors that the metadata describes, with the types of the result and of the arguments."""
    found: dict[str, str] = {}
    for call in ast.walk(ast.parse(metadata)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "r"):
            continue
        _, name, about = (ast.literal_eval(argument) for argument in call.args)
        selector, types = name.decode(), about.get("arguments", {})
        places = [about.get("retval", {}), *(types.get(place + 2, {}) for place in range(selector.count(":")))]
        encodings = [_text(each.get("type_modifier", "")) + _text(each.get("type", "?")) for each in places]
        found.setdefault(selector.replace(":", "_"), " ".join(encodings))
    return found


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def text_of_constants(constants: dict[str, int]) -> str:
    return _HEADER + "".join(f"{name} = {value}\n" for name, value in sorted(constants.items()))


def text_of_selectors(selectors: dict[str, str], wanted: set[str]) -> str:
    return "".join(f"{name} {types}\n" for name, types in sorted(selectors.items()) if name in wanted)


if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)  # not this folder, whose modules belong to the package
    metadata = Path(sys.argv[1]).read_text(encoding="utf-8")
    (HERE / "constants.py").write_text(text_of_constants(constants_in(metadata)), encoding="utf-8")
    from softmetal.selector_table import of_protocols

    text = text_of_selectors(selectors_in(metadata), set(of_protocols()))
    (HERE / "selectors.txt").write_text(text, encoding="utf-8")
