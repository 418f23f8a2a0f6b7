"""Services that receive no numbers of a run without values: the one place that says what is done for each.

This file imports the standard library only: `sitecustomize` loads it by its path in each Python process that the
program starts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, MutableMapping
from types import ModuleType
from typing import Any

__all__ = ["DROPPED", "SERVICES", "VARIABLES", "install", "set_environment", "used"]

_SERVICES = (  # the modules, of which a program imports one, and what is done
    (("huggingface_hub",), "Hugging Face Hub: repositories are not created or changed, and nothing is uploaded"),
    (("wandb",), "Weights & Biases: disabled"),
    (("neptune",), "neptune.ai: disabled"),
    (("swanlab",), "SwanLab: disabled"),
    (("mlflow",), "MLflow: written to a folder that is dropped"),
    (("clearml",), "ClearML: offline"),
    (("tensorboard", "tensorboardX"), "TensorBoard: event files are not created"),
)
SERVICES = tuple(text for _, text in _SERVICES)
DROPPED = "/tmp/forebay-mlruns"  # noqa: S108 -- in the overlay, and never created for real
_ENVIRONMENT = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": f"file://{DROPPED}",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
}
VARIABLES = tuple(_ENVIRONMENT)
_READS = (  # beginnings of the names of methods of HfApi that change nothing
    "auth_check", "bucket_info", "dataset_info", "download_", "fetch_", "file_exists", "get_", "hf_hub_download",
    "inspect_", "kernel_info", "list_", "model_info", "paper_info", "parse_", "read_paper", "repo_exists", "repo_info",
    "resolve_", "revision_exists", "run_as_future", "search_", "snapshot_download", "space_info", "verify_",
    "wait_for_", "whoami",
)  # fmt: skip
_COMMITS = ("create_commit", "delete_file", "delete_files", "delete_folder", "upload_file", "upload_folder")
_REPOSITORIES = ("create_repo", "duplicate_repo", "duplicate_space")
_NO_COMMIT = "0" * 40


def used(modules: Container[str]) -> tuple[str, ...]:
    """Return what is done for the services whose modules are imported."""
    return tuple(text for names, text in _SERVICES if any(each in modules for each in names))


def set_environment(environment: MutableMapping[str, str]) -> None:
    """Set the variables by which services are disabled, for the program and its processes."""
    environment.update(_ENVIRONMENT)


def install(hook: Callable[[str, Callable[[ModuleType], object]], Any]) -> None:
    """Let the libraries of services send nothing once they are imported: arguments of a program override variables.

    Parameters
    ----------
    hook : type
        `forebay.interop.torch.import_hook.ImportHook`.
    """
    for name, replace in (
        ("huggingface_hub.hf_api", _replace_hub), ("wandb", _replace_wandb), ("mlflow", _replace_mlflow)
    ):  # fmt: skip
        hook(name, replace).install()


def _replace_hub(module: ModuleType) -> None:
    api = module.HfApi
    for name, function in [*vars(api).items()]:
        if callable(function) and not name.startswith(("_", *_READS)) and not isinstance(function, type):
            setattr(api, name, _not_sent(module, name, function))
            if callable(getattr(module, name, None)) and hasattr(module, "api"):
                setattr(module, name, getattr(module.api, name))


def _not_sent(module: ModuleType, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: Any, *args: Any, run_as_future: bool = False, **keywords: Any) -> Any:
        repository = str(keywords.get("repo_id") or next((each for each in args if isinstance(each, str)), "model"))
        result = _result(module, name, repository, keywords)
        return self.run_as_future(lambda: result) if run_as_future else result

    return call


def _result(module: ModuleType, name: str, repository: str, keywords: dict[str, Any]) -> Any:
    """Return what the method returns where its caller may use it."""
    kind = {"dataset": "datasets/", "space": "spaces/"}.get(str(keywords.get("repo_type")), "")
    url = f"https://huggingface.co/{kind}{repository if '/' in repository else f'user/{repository}'}"
    if name in _REPOSITORIES:
        return module.RepoUrl(url)
    if name in _COMMITS:
        message = str(keywords.get("commit_message") or "")
        return module.CommitInfo(
            commit_url=f"{url}/commit/{_NO_COMMIT}", commit_message=message, commit_description="", oid=_NO_COMMIT
        )
    return None


def _replace_wandb(module: ModuleType) -> None:
    init = getattr(module, "init", None)
    if init is not None:
        module.init = functools.wraps(init)(lambda *args, **keywords: init(*args, **{**keywords, "mode": "disabled"}))  # type: ignore[attr-defined]  # the library's function


def _replace_mlflow(module: ModuleType) -> None:
    if hasattr(module, "set_tracking_uri"):
        module.set_tracking_uri = functools.wraps(module.set_tracking_uri)(lambda *_, **__: None)  # type: ignore[attr-defined]  # as above
