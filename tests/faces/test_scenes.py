"""Forebay does what the real torch.cuda was seen to do, and it still does that. on_oracle.py tells how it works."""

from __future__ import annotations

import pytest
from support.on_oracle import every_file, why_no_oracle

FILES = {found.path.stem: found for found in every_file()}


def each_scene():
    for stem, found in FILES.items():
        for name in found.scenes:
            why = found.differs.get(name)
            marks = [pytest.mark.xfail(raises=AssertionError, strict=True, reason=why)] if why else []
            yield pytest.param(stem, name, id=f"{stem}-{name}", marks=marks)


@pytest.mark.parametrize(("stem", "scene"), list(each_scene()))
def test_forebay_does_as_recorded(stem, scene):
    found = FILES[stem]
    recorded = found.recorded()
    if scene not in recorded:
        pytest.fail(f"no record yet: python3 tests/support/on_oracle.py record {stem}")
    ours = found.on("forebay", scene)["scenes"][scene] if found.fresh else found.here(scene)
    assert ours == recorded[scene]


@pytest.mark.oracle
@pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle())
@pytest.mark.parametrize("stem", FILES)
def test_the_oracle_does_as_recorded(stem):
    assert FILES[stem].on("pytorch")["scenes"] == FILES[stem].recorded()


@pytest.mark.parametrize("stem", FILES)
def test_no_record_is_left_over(stem):
    assert FILES[stem].recorded().keys() - FILES[stem].scenes == set()
