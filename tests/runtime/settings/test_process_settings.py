"""Settings of the process: which of them apply if the environment is invalid."""

from __future__ import annotations

import pytest

import forebay
from forebay.runtime.settings import process_settings
from forebay.runtime.settings.allocator_settings import DEFAULT

MIB = 1 << 20


@pytest.fixture
def from_environment(monkeypatch):
    """Return a function that makes a text the settings of a new process."""

    def use(text: str) -> None:
        monkeypatch.setenv("FOREBAY_ALLOC_CONF", text)
        monkeypatch.setattr(process_settings, "_current", None)

    monkeypatch.setattr(process_settings, "_at_first_use", {})
    return use


def test_settings_are_read_once(from_environment, monkeypatch):
    from_environment("max_split_size_mb:64")
    assert process_settings.for_devices().max_split_size == 64 * MIB
    monkeypatch.setenv("FOREBAY_ALLOC_CONF", "max_split_size_mb:128")
    assert process_settings.for_devices() is process_settings.current()
    assert process_settings.current().max_split_size == 64 * MIB


@pytest.mark.filterwarnings("error")
def test_invalid_key_is_refused_with_the_native_backend(from_environment):
    from_environment("max_split_size_mb:64,foo:1")
    for _ in range(2):
        with pytest.raises(ValueError, match="Unrecognized key 'foo'"):
            process_settings.for_devices()


def test_keys_before_an_error_apply_with_another_backend(from_environment):
    from_environment("max_split_size_mb:64,backend:cudaMallocAsync,max_split_size_mb:1")
    with pytest.warns(forebay.ForebayWarning, match="backend:cudaMallocAsync is not available in forebay"):
        found = process_settings.at_first_use("cuda")
    assert (found.backend, found.max_split_size) == ("cudaMallocAsync", 64 * MIB)
    with pytest.raises(ValueError, match="max_split_size_mb too small"):
        process_settings.current()


def test_values_at_the_first_use_of_a_kind_are_kept(from_environment):
    from_environment("max_split_size_mb:64")
    process_settings.keep_for_kind("fake")
    from_environment("")
    assert process_settings.at_first_use("fake").max_split_size == 64 * MIB
    assert process_settings.at_first_use("other") == DEFAULT
