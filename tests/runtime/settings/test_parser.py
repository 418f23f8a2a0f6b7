"""Allocator settings compared with those of PyTorch 2.15 for the same strings (tests/data/make_settings.py)."""

from __future__ import annotations

import builtins
import json
import lzma
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay._base import config
from forebay.errors import ForebayWarning
from forebay.runtime.settings import configuration as module
from forebay.runtime.settings.allocator_settings import DEFAULT, UNLIMITED, AllocatorSettings
from forebay.runtime.settings.keys import KEYS
from forebay.runtime.settings.parser import SettingsError
from forebay.simulate import Device

TABLE = json.loads(lzma.decompress((Path(__file__).parents[2] / "data/allocator_settings.json.xz").read_bytes()))
MIB = 1 << 20


def as_in_table(settings: AllocatorSettings, names) -> dict[str, object]:
    """Return the settings in the form of the table."""
    found = {name: getattr(settings, name) for name in TABLE["rows"][0]["state"] if name != "reserves"}
    found |= {name: value.hex() if isinstance(value, float) else value for name, value in found.items()}
    found["roundup_power2_divisions"] = list(settings.roundup_power2_divisions)
    found["reserves"] = {name: settings.expandable_reserve(TABLE["total"], name) for name in names}
    return found


def expected(state: dict[str, object]) -> dict[str, object]:
    """Return the table's state with floats as Python's hex strings."""
    return {
        name: float.fromhex(value).hex() if isinstance(value, str) and name != "text" else value
        for name, value in state.items()
    }


def parse_all(texts: list[str]):
    """Parse the strings in order, continuing after an error with the settings that were applied."""
    settings, errors = DEFAULT, []
    for text in texts:
        try:
            settings = module.parse(text, settings)
            errors.append(None)
        except SettingsError as error:
            settings = error.applied
            errors.append(error)
    return settings, errors


def shortened(texts: list[str]) -> str:
    return " then ".join(texts)[:60] or "nothing"


def same_error(error: SettingsError | None, recorded: list[str] | None) -> bool:
    if error is None or recorded is None:
        return error is recorded
    return isinstance(error, getattr(builtins, recorded[0])) and str(error) == recorded[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", TABLE["rows"], ids=lambda row: shortened(row["texts"]).encode("unicode_escape").decode()
)
def test_parse_agrees_with_pytorch(row):
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        settings, errors = parse_all(row["texts"])
    assert [
        (str(error), recorded)
        for error, recorded in zip(errors, row["errors"], strict=True)
        if not same_error(error, recorded)
    ] == []
    assert as_in_table(settings, row["state"]["reserves"]) == expected(row["state"])
    assert json.dumps(settings.as_snapshot()) == json.dumps(row["snapshot"])
    messages = [str(warning.message) for warning in caught_warnings]
    assert messages[: len(row["warnings"])] == row["warnings"]
    assert (
        len({*messages}) == len({*row["warnings"]}) or len(row["texts"]) > 1
    )  # PyTorch warns of some once per process
    assert {warning.category for warning in caught_warnings} <= {ForebayWarning}


@pytest.mark.slow
@pytest.mark.parametrize(("conf", "nbytes", "block", "reserved"), TABLE["blocks"])
def test_block_sizes_agree_with_pytorch(conf, nbytes, block, reserved):
    device = Device(1 << 50, conf)
    device.allocate(nbytes)
    stats = device.stats()
    assert [stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]] == [block, reserved]


@pytest.mark.parametrize("start", TABLE["starts"], ids=lambda start: shortened([*start["environ"].values()]))
def test_initial_settings_agree_with_pytorch(start):
    result = start["result"]
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        if result is None:  # PyTorch aborts the process
            with pytest.raises(SettingsError):
                module.from_environment(start["environ"])
            return
        if result["error"] is not None:
            with pytest.raises(SettingsError) as caught:
                module.from_environment(start["environ"])
            assert same_error(caught.value, result["error"])
            assert f"in the environment variable {next(iter(start['environ']))}" in caught.value.__notes__
            return
        settings = module.from_environment(start["environ"])
    assert settings.backend == result["backend"]
    assert as_in_table(settings, [""]) == expected(result["state"])
    assert [str(warning.message) for warning in caught_warnings] == start["warnings"]


def test_environment_variables_have_precedence():
    environ = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:30"}
    assert module.from_environment(environ).max_split_size == 30 * MIB
    environ["PYTORCH_CUDA_ALLOC_CONF"] = ""
    assert module.from_environment(environ) == DEFAULT
    environ["FOREBAY_ALLOC_CONF"] = "max_split_size_mb:40"
    assert module.from_environment(environ).max_split_size == 40 * MIB
    environ["FOREBAY_ALLOC_CONF"] = " "
    assert module.from_environment(environ) == DEFAULT
    assert module.from_environment({}) == DEFAULT


def test_environment_is_read_at_each_call(monkeypatch):
    for name in config.ALLOCATOR_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert config.allocator_settings() == ("", "")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", " expandable_segments : True ")
    assert config.allocator_settings() == ("PYTORCH_ALLOC_CONF", " expandable_segments : True ")
    assert module.from_environment().expandable_segments


def test_backend_cannot_change_after_start():
    settings = module.parse_initial("backend:cudaMallocAsync")
    assert settings.backend == "cudaMallocAsync"
    assert module.parse("backend:cudaMallocAsync", settings) == settings
    for text, before in (("backend:cudaMallocAsync", DEFAULT), ("backend:native", settings)):
        with pytest.raises(RuntimeError, match="Allocator backend parsed at runtime != allocator backend parsed at"):
            module.parse(text, before)


def test_error_notes_name_the_value():
    with pytest.raises(ValueError, match="many") as caught:
        module.parse("max_split_size_mb:many")
    assert str(caught.value) == "stoull"
    assert caught.value.__notes__ == ["'many' is not a number", "in the allocator's settings 'max_split_size_mb:many'"]
    with pytest.raises(IndexError, match="1e400") as caught:
        module.parse("garbage_collection_threshold:1e400")
    assert str(caught.value) == "stod"
    assert caught.value.__notes__[0] == "'1e400' is out of range"


def test_warning_configured_as_error_is_raised():
    with pytest.raises(ForebayWarning, match="Ignoring invalid expandable-segment reserve value 'x'"):
        module.parse("expandable_segments_reserve:x")


@pytest.mark.parametrize(
    ("text", "total", "stream_class", "nbytes"),
    [
        ("", 80 << 30, "", 90 << 30),
        ("expandable_segments_reserve:0.5", 80 << 30, "", 40 << 30),
        ("expandable_segments_reserve:20G", 80 << 30, "serving", 20 << 30),
        ("expandable_segments_reserve:1e300", 80 << 30, "", 90 << 30),
        ("expandable_segments_reserve:0.5,expandable_segments_reserve_by_class:[a:8G]", 80 << 30, "a", 8 << 30),
    ],
)
def test_expandable_reserve_is_at_most_nine_eighths_of_memory(text, total, stream_class, nbytes):
    assert module.parse(text).expandable_reserve(total, stream_class) == nbytes


def test_settings_are_hashable_and_immutable():
    settings = module.parse("roundup_power2_divisions:[4:2],expandable_segments_reserve_by_class:[a:0.5]")
    assert hash(settings) == hash(module.parse(settings.text))
    assert settings == module.parse(settings.text)
    assert DEFAULT.max_split_size == UNLIMITED
    with pytest.raises(AttributeError):
        settings.backend = "other"


words = st.sampled_from(
    [*sorted(KEYS), ",", ":", "[", "]", ">", "True", "20", "-1", "0.5", "40G", "1e400", "0x1p-1074", "native"]
)
likely = st.lists(words | st.text(max_size=3), max_size=20).map("".join)


@given(st.text() | likely, likely)
@example("\ud800:1", "")
@example("max_split_size_mb:" + "9" * 5000, "max_split_size_mb:" + "0" * 5000 + "20")
@example("garbage_collection_threshold:0." + "0" * 5000 + "1", "garbage_collection_threshold:1e-" + "9" * 5000)
@example("garbage_collection_threshold:0." + "0" * 310 + "1" * 6000, "garbage_collection_threshold:0x" + "0" * 9999)
@example("garbage_collection_threshold:0x" + "f" * 9999 + "p-41073", "")
def test_arbitrary_text_gives_settings_or_value_error(first, second):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for parse in (lambda text: module.parse(text, module.parse("")), module.parse_initial):
            for text in (first, second):
                try:
                    settings = parse(text)
                except ValueError as error:
                    settings = error.applied
                assert settings.text == text
                settings.as_snapshot()


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:20," * 20_000,
        "max_split_size_mb:" + "1" * 1_000_000,
        "garbage_collection_threshold:0." + "0" * 500_000 + "1" * 500_000,
        "garbage_collection_threshold:1" + "0" * 200_000 + "e-200310",
        "roundup_power2_divisions:[" + "4:8," * 100_000,
        "expandable_segments_reserve_by_class:[" + "a:1," * 100_000 + "]",
        "backend:[" * 200_000,
        " " * 1_000_000 + "[" * 500_000,
    ],
)
def test_long_text_is_parsed_in_linear_time(text):
    began = time.process_time()
    with pytest.raises(ValueError, match=r"."):
        module.parse(text + ",foo:1")
    assert time.process_time() - began < 5
