"""Configuration strings (PYTORCH_CUDA_ALLOC_CONF): how a later one changes the settings of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from forebay._base import config
from forebay.runtime.settings.allocator_settings import DEFAULT, AllocatorSettings
from forebay.runtime.settings.keys import BACKENDS, SettingsReader
from forebay.runtime.settings.parser import SettingsError, Tokens

__all__ = ["change", "from_environment", "parse", "parse_initial"]


def parse(text: str, before: AllocatorSettings = DEFAULT) -> AllocatorSettings:
    """Return the settings after parsing `text` in a process whose settings were `before`.

    Each string resets four keys: max_split_size_mb, roundup_power2_divisions and garbage_collection_threshold to their
    defaults, max_non_split_rounding_mb to the size of a large segment. All others keep their values.

    Raises SettingsError, a ValueError whose `applied` has the settings after the keys before the error.

    >>> parse("max_split_size_mb:64,garbage_collection_threshold:0.8").max_split_size
    67108864
    >>> parse("expandable_segments:yes")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    SettingsError: Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'yes'
    in the allocator's settings 'expandable_segments:yes'
    """
    reader = SettingsReader(text, _with_resets(text, before))
    return reader.run(reader.parse_common, reader.parse_cuda)


def parse_initial(text: str, *, common_first: bool = False) -> AllocatorSettings:
    """Return the settings of a process that starts with this string. Only here may `backend` be any backend.

    PyTorch parses CUDA's keys first if a CUDA function is the first to need them, else (`common_first`) the common
    ones. The order decides which error is raised.
    """
    reader = SettingsReader(text, replace(DEFAULT, text=text, backend=_first_backend(text)))
    passes = (reader.parse_cuda, reader.parse_common)
    return reader.run(*(passes[::-1] if common_first else passes))


def change(text: str, before: AllocatorSettings, apply: Callable[[AllocatorSettings], object]) -> None:
    """Pass the result of `parse` to `apply`. Keys before an error take effect, as in PyTorch."""
    try:
        apply(parse(text, before))
    except SettingsError as error:
        apply(error.applied)
        raise


def from_environment(environ: Mapping[str, str] | None = None, *, common_first: bool = False) -> AllocatorSettings:
    """Return the settings of the environment (os.environ by default). An error has a note that names the variable."""
    name, text = config.allocator_settings(environ)
    try:
        return parse_initial(text, common_first=common_first)
    except SettingsError as error:
        error.add_note(f"in the environment variable {name}")
        raise


def _with_resets(text: str, before: AllocatorSettings) -> AllocatorSettings:
    return replace(
        before,
        text=text,
        max_split_size=DEFAULT.max_split_size,
        roundup_power2_divisions=DEFAULT.roundup_power2_divisions,
        garbage_collection_threshold=DEFAULT.garbage_collection_threshold,
    )


def _first_backend(text: str) -> str:
    """Return the first valid backend in the string; errors are left to the actual parse."""
    tokens, at = Tokens(text), 0
    try:
        while at < len(tokens):
            if tokens[at] == "backend":
                name = tokens[tokens.value_index(at)]
                return name if name in BACKENDS else DEFAULT.backend
            at = tokens.end_index(at) + 2
    except SettingsError:
        pass
    return DEFAULT.backend
