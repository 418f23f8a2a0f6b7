"""Pretrained models of transformers whose weights are not there: without values, they are assumed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from forebay.interop.torch.devices import values
from forebay.interop.torch.processes import assumed_values

__all__ = ["MODULE", "replace_search"]

MODULE = "transformers.modeling_utils"
_SEARCH = "_get_resolved_checkpoint_files"  # of transformers 4.50 and later
_folders: list[tempfile.TemporaryDirectory[str]] = []  # until the exit


def replace_search(module: ModuleType) -> None:
    """Let `from_pretrained` find a file without weights, if it finds none: the library initializes what is missing."""
    original = getattr(module, _SEARCH, None)
    if original is None:
        return

    def search(*args: Any, **keywords: Any) -> Any:
        try:
            return original(*args, **keywords)
        except OSError as error:
            name = keywords.get("pretrained_model_name_or_path", args[0] if args else "")
            folder = Path(str(name))
            if values.is_computed() or (folder.is_dir() and not any(folder.rglob("config.json"))):
                raise  # without a configuration, the library would take the default one of the class
            reason = str(error).partition("\n")[0]
            assumed_values.note(values.calling_line()[0], f"the weights of {name}, which are not there ({reason})")
            return [str(_empty_file())], None

    setattr(module, _SEARCH, search)


def _empty_file() -> Path:
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="forebay-"))
    file = Path(_folders[0].name, "model.safetensors")
    text = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    return file
