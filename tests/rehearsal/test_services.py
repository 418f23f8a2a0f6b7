"""Libraries of services, with modules of their names that record what they are asked."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

from forebay.interop.torch.import_hook import ImportHook
from forebay.rehearsal import services

HUB = """
    class RepoUrl(str):
        pass

    class CommitInfo:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    class HfApi:
        sent = []

        def run_as_future(self, function):
            class Future:
                result = staticmethod(function)
            return Future

        def create_repo(self, repo_id, **_): self.sent.append("create_repo")
        def upload_folder(self, *, repo_id, folder_path, **_): self.sent.append("upload_folder")
        def delete_repo(self, repo_id): self.sent.append("delete_repo")
        def upload_large_folder(self, repo_id, folder_path): self.sent.append("upload_large_folder")
        def some_new_method(self): self.sent.append("some_new_method")
        def list_models(self): return ["a model"]
        def repo_exists(self, repo_id): return True
        def _private(self): return "private"

    api = HfApi()
    create_repo, upload_folder, list_models = api.create_repo, api.upload_folder, api.list_models
"""


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """Install the hooks, and packages whose modules are written by the returned function."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("huggingface_hub", "huggingface_hub.hf_api", "wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def write(name, source):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(source))

    services.install(ImportHook)
    yield write
    for name in ("huggingface_hub", "huggingface_hub.hf_api", "wandb", "mlflow"):
        sys.modules.pop(name, None)


def test_hub_gets_no_changes_and_answers_reads(libraries):
    libraries("huggingface_hub/__init__", "")
    libraries("huggingface_hub/hf_api", HUB)
    from huggingface_hub import hf_api  # type: ignore[import-not-found]

    api = hf_api.HfApi()
    assert api.create_repo("me/model", exist_ok=True) == "https://huggingface.co/me/model"
    assert hf_api.create_repo(repo_id="data", repo_type="dataset") == "https://huggingface.co/datasets/user/data"
    commit = hf_api.upload_folder(repo_id="me/model", folder_path="out", commit_message="end")
    assert (commit.oid, commit.commit_message) == ("0" * 40, "end")
    assert commit.commit_url.startswith("https://huggingface.co/me/model/commit/")
    future = api.upload_folder(repo_id="me/model", folder_path="out", run_as_future=True)
    assert future.result().oid == "0" * 40
    assert api.delete_repo("me/model") is api.upload_large_folder("me/model", "out") is api.some_new_method() is None
    assert (hf_api.list_models(), api.repo_exists("x"), api._private()) == (["a model"], True, "private")
    assert api.sent == []


def test_wandb_is_disabled_whatever_the_program_asks(libraries):
    libraries("wandb", "def init(project=None, mode=None): return project, mode")
    import wandb  # type: ignore[import-not-found]

    assert wandb.init("p") == wandb.init("p", mode="online") == ("p", "disabled")


def test_mlflow_keeps_the_folder_that_is_dropped(libraries):
    libraries("mlflow", "uris = []\ndef set_tracking_uri(uri): uris.append(uri)")
    import mlflow  # type: ignore[import-not-found]

    mlflow.set_tracking_uri("https://tracking.example")
    assert mlflow.uris == []


def test_environment_disables_services():
    found: dict[str, str] = {"WANDB_MODE": "online"}
    services.set_environment(found)
    assert found["WANDB_MODE"] == "disabled"
    assert found["MLFLOW_TRACKING_URI"] == f"file://{services.DROPPED}"


def test_used_services_are_those_that_are_imported():
    assert services.used({"os": None, "wandb": None}) == ("Weights & Biases: disabled",)
    assert services.used(()) == ()
    assert set(services.used(("tensorboardX",))) < set(services.SERVICES)
