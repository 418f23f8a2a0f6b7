"""Exceptions of programs that lack data, such as files that are not here and downloads without a network.

# Note [Missing data]
A program that ends as it cannot read its data or its tokenizer tells nothing about its model. Which exceptions mean
that is decided by their types, by name, as their libraries may not be installed, and for types that mean anything by
the file of the function that raised them; never by their texts, which change. A download counts also where another
exception was raised while it was handled, as libraries raise their own then. A file that is not found counts only if
nothing caught the error: programs look for caches and go on.
Test: tests/interop/torch/processes/test_missing_data.py::test_missing_data_is_found_by_types_and_origin
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import FrameType

from forebay._base.untrusted import printable, shortened

__all__ = ["missing_data"]

_DOWNLOADS = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectionError",
        "datasets.exceptions.DataFilesNotFoundError", "datasets.exceptions.DatasetNotFoundError",
        "datasets.utils.file_utils.OfflineModeIsEnabled", "datasets.utils._datasets_server.DatasetsServerError",
        "huggingface_hub.errors.LocalEntryNotFoundError", "huggingface_hub.errors.OfflineModeIsEnabled",
        "huggingface_hub.utils._errors.LocalEntryNotFoundError",
        "requests.exceptions.ConnectionError", "requests.exceptions.Timeout",
        "urllib.error.URLError", "urllib3.exceptions.MaxRetryError", "urllib3.exceptions.NewConnectionError",
    }
)  # fmt: skip
# HTTP clients of changing names (httpx, httpx2): the last part of the module's name is not theirs.
_TRANSPORTS = ("httpx", "httpcore")
_TRANSPORT_ERRORS = frozenset({"NetworkError", "TimeoutException", "ProxyError"})
_ANSWERS = frozenset({"urllib.error.HTTPError"})  # a server was there
# Packages whose functions raise these types for data that is not here.
_FROM = {
    "builtins.RuntimeError": ("/torchvision/datasets/", "/torchaudio/datasets/"),
    "builtins.LookupError": ("/nltk/",),
    "builtins.ConnectionError": ("/datasets/", "/huggingface_hub/"),
}
_STARTS = ("/subprocess.py", "/os.py", "/multiprocessing/")  # what is not found there is a program
_NAMES = ("repo_id", "path_or_repo_id", "pretrained_model_name_or_path", "url", "fullurl", "root")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/urllib/")
_MOST = 120  # characters


def missing_data(causes: Iterable[BaseException], contexts: Iterable[BaseException]) -> str:
    """Return what data was missing when a program ended; "" if that is not the reason.

    `causes` are the exception that ended it and those that it was raised from, `contexts` also those that were handled.
    """
    for each in causes:
        if isinstance(each, FileNotFoundError) and each.filename is not None and not _is_from(each, _STARTS):
            return _in_words(str(each.filename))
    for each in contexts:
        names = _types(each)
        if names.isdisjoint(_ANSWERS) and (not names.isdisjoint(_DOWNLOADS) or _is_transport(each)):
            return _in_words(_named(each) or str(each))
    for each in causes:
        if any(_is_from(each, folders) for name, folders in _FROM.items() if name in _types(each)):
            return _in_words(_named(each) or str(each))
    return ""


def _types(error: BaseException) -> set[str]:
    return {f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__}


def _is_transport(error: BaseException) -> bool:
    return any(
        each.__module__.startswith(_TRANSPORTS) and each.__name__ in _TRANSPORT_ERRORS for each in type(error).__mro__
    )


def _frames(error: BaseException) -> list[FrameType]:
    """Return the frames, innermost first."""
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]


def _is_from(error: BaseException, folders: tuple[str, ...]) -> bool:
    frames = _frames(error)
    return bool(frames) and any(each in frames[0].f_code.co_filename for each in folders)


def _named(error: BaseException) -> str:
    """Return the repository or the address that a function of the library was called with."""
    for frame in reversed(_frames(error)):  # outermost first: inner ones have parts of it
        if not any(each in frame.f_code.co_filename for each in _LIBRARIES):
            continue
        for name in _NAMES:
            found = frame.f_locals.get(name)
            found = getattr(found, "full_url", found)  # of a request
            if isinstance(found, str) and found:
                return found
    return ""


def _in_words(text: str) -> str:
    return shortened(printable(" ".join(text.split())), _MOST)
