"""The sources that the Metal backend compiles: its kernels with each law and each type of element."""

from __future__ import annotations

import itertools
from importlib import resources

from forebay.backends.metal.kernels import draws, strided

LAWS = ("UNIFORM", "NORMAL", "EXPONENTIAL", "BERNOULLI", "INTEGERS", "INTEGERS_64")


def sources_of_the_backend() -> dict[str, str]:
    """Return the text of each source, by a name."""
    folder = resources.files("forebay.backends.metal.kernels") / "device_code"
    texts = {each.name: each.read_text() for each in folder.iterdir() if each.name.endswith(".metal")}
    draw, convert = texts.pop("draw.metal"), texts.pop("convert.metal")
    elements = list(draws._ELEMENTS.items())
    cases = [*itertools.product(LAWS, elements[:1]), *itertools.product(LAWS[:1], elements), (LAWS[-1], elements[-1])]
    for law, (element, (bits, store)) in cases:
        lines = f"#define LAW_{law} 1\n#define BITS {bits}\n#define STORE(number) {store}\n"
        texts[f"draw {law} {element}"] = texts["philox.metal"] + lines + draw
    for element, (bits, load, store) in strided._FORMS.items():
        lines = f"#define FROM_BITS {bits}\n#define LOAD(bits) {load}\n#define TO_BITS {bits}\n"
        texts[f"convert {element}"] = f"{texts['philox.metal']}{lines}#define STORE(value) {store}\n{convert}"
    return texts
