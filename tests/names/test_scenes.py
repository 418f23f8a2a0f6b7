"""Scenes return in forebay what was recorded from PyTorch, and PyTorch still returns it (see support/on_oracle.py)."""

from __future__ import annotations

from functools import lru_cache

import pytest
from support.on_oracle import every_file, outcomes, why_no_oracle

LONG = ("memory_frames", "memory_history")  # C++ frames of PyTorch
FILES = {scene_file.path.stem: scene_file for scene_file in every_file()}


@lru_cache(maxsize=2)
def fresh_outcomes(stem):
    """The outcomes of all scenes of a file: one new process for them all, not one for each."""
    return outcomes("forebay", [FILES[stem]])[stem]


def fresh_result(stem, scene):
    found = fresh_outcomes(stem)
    assert scene not in found["failed"], found["failed"][scene]
    return found["scenes"][scene]


def each_scene():
    for stem, scene_file in FILES.items():
        for name in scene_file.scenes:
            reason = scene_file.differs.get(name)
            marks = [pytest.mark.xfail(raises=AssertionError, strict=True, reason=reason)] if reason else []
            marks += [pytest.mark.slow] if scene_file.fresh else []  # a child process
            marks += [pytest.mark.skip(why)] if (why := scene_file.why_not()) else []
            yield pytest.param(stem, name, id=f"{stem}-{name}", marks=marks)


@pytest.mark.parametrize(("stem", "scene"), list(each_scene()))
def test_forebay_does_as_recorded(stem, scene):
    scene_file = FILES[stem]
    recorded = scene_file.recorded()
    if scene not in recorded:
        pytest.fail(f"no record yet: python3 tests/support/on_oracle.py record {stem}")
    result = fresh_result(stem, scene) if scene_file.fresh else scene_file.run_here(scene)
    result, expected = scene_file.compared(result, recorded[scene])
    assert result == expected


def groups():
    """The files, several together that run in one process, as the start of PyTorch takes longer than most of them."""
    usual = [file for file in FILES.values() if file.driver and not file.environ and file.path.stem not in LONG]
    special = [[file] for file in FILES.values() if file not in usual]
    for group in (*(usual[at : at + 4] for at in range(0, len(usual), 4)), *special):
        names = [file.path.stem for file in group]
        marks = [pytest.mark.skip(why)] if (why := group[0].why_not()) else []
        yield pytest.param(group, id="-".join(dict.fromkeys((names[0], names[-1]))), marks=marks)


@pytest.mark.oracle
@pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle())
@pytest.mark.parametrize("group", list(groups()))
def test_oracle_does_as_recorded(group):
    for stem, found in outcomes("pytorch", group).items():
        assert not found["failed"], (stem, found["failed"])
        assert found["scenes"] == FILES[stem].recorded(), stem


@pytest.mark.parametrize("stem", FILES)
def test_every_record_has_a_scene(stem):
    assert FILES[stem].recorded().keys() - FILES[stem].scenes == set()
