"""Names, values and signatures are those of PyObjC's metadata, from which read_metadata.py wrote two tables."""

from __future__ import annotations

import importlib.util
import inspect
import os
from pathlib import Path

import pytest
from softmetal import constants
from softmetal.read_metadata import HERE, constants_in, selectors_in, text_of_constants, text_of_selectors
from softmetal.selector_table import of_protocols

RECORDED = dict(line.split(" ", 1) for line in (HERE / "selectors.txt").read_text().splitlines())
# Selectors of classes, which PyObjC takes from the Objective-C runtime: Apple documents them.
OF_CLASSES = {"bindings", "objectAtIndexedSubscript_", "setObject_atIndexedSubscript_"}
EXAMPLE = '''
enums = """$MTLHeapTypeAutomatic@0$MTLHeapTypePlacement@1$MTLUnrelated@7$"""
r = objc.registerMetaDataForSelector
try:
    r(b"NSObject", b"setBytes:length:", {"retval": {"type": b"v"}, "arguments": {2: {"type": b"^v"}, 3: {"type": "Q"}}})
finally:
    objc._updatingMetadata(False)
'''


def metadata():
    """Return the text of the metadata, if it is on this machine."""
    if os.environ.get("PYOBJC_METAL_METADATA"):
        return Path(os.environ["PYOBJC_METAL_METADATA"]).read_text()
    found = importlib.util.find_spec("Metal")
    if found is None or found.origin is None:
        pytest.skip("neither PyObjC nor PYOBJC_METAL_METADATA, a path of its Metal/_metadata.py, is there")
    return (Path(found.origin).parent / "_metadata.py").read_text()


def test_tables_are_those_of_the_metadata():
    text = metadata()
    assert (HERE / "constants.py").read_text().splitlines()[1:] == text_of_constants(constants_in(text)).splitlines()[
        1:
    ]
    assert (HERE / "selectors.txt").read_text() == text_of_selectors(selectors_in(text), set(of_protocols()))


def test_tables_are_read_from_the_metadata():
    assert constants_in(EXAMPLE) == {"MTLHeapTypeAutomatic": 0, "MTLHeapTypePlacement": 1}
    assert selectors_in(EXAMPLE) == {"setBytes_length_": "v ^v Q"}
    assert text_of_selectors(selectors_in(EXAMPLE), {"setBytes_length_"}) == "setBytes_length_ v ^v Q\n"


@pytest.mark.parametrize("selector", sorted(of_protocols()))
def test_selector_exists_with_this_number_of_arguments(selector):
    expected = selector.count("_") if selector in OF_CLASSES else len(RECORDED[selector].split()) - 1
    method = inspect.signature(getattr(of_protocols()[selector], selector))
    names = [name for name in method.parameters if name != "self"]
    assert len(names) == expected == selector.count("_")


def test_bits_of_resource_options_are_shifted_modes():
    for kind, names in {
        "StorageMode": ("Shared", "Managed", "Private", "Memoryless"),
        "HazardTrackingMode": ("Default", "Untracked", "Tracked"),
        "CPUCacheMode": ("DefaultCache", "WriteCombined"),
    }.items():
        shift = getattr(constants, f"MTLResource{kind}Shift")
        for name in names:
            mode = getattr(constants, f"MTL{kind}{name}")
            assert getattr(constants, f"MTLResource{kind}{name}") == mode << shift
