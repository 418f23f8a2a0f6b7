"""Programs that end as their data is not here, and others whose exceptions look similar."""

from __future__ import annotations

import importlib.util
import sys
import urllib.error

import pytest

from forebay._base.verdicts import How, ProcessEvents, Verdict, judge
from forebay.interop.torch.processes.endings import ending_of

# Libraries whose functions raise exceptions as the real ones do, by the file of the function.
LIBRARIES = {
    "site-packages/huggingface_hub/errors.py": "class LocalEntryNotFoundError(FileNotFoundError, ValueError): pass",
    "site-packages/transformers_hub.py": (
        "from errors import LocalEntryNotFoundError\n"
        "def cached_file(path_or_repo_id):\n"
        "    try: raise LocalEntryNotFoundError('not on the Hub')\n"
        "    except Exception: raise OSError('cannot connect') from None\n"
    ),
    "site-packages/torchvision/datasets/mnist.py": "def read(root): raise RuntimeError('Dataset')\n",
    "site-packages/torchvision/models/net.py": "def read(root): raise RuntimeError('Dataset')\n",
    "site-packages/nltk/data.py": "def find(url): raise LookupError(url)\n",
    "site-packages/datasets/load.py": "def load(path): raise ConnectionError(path)\n",
    "site-packages/requests/exceptions.py": (
        "class ConnectionError(OSError): pass\ndef get(url): raise ConnectionError('failed')\n"
    ),
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Return a function that imports one of the libraries."""

    def load(file, name=None):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LIBRARIES[file])
        name = name or file.removeprefix("site-packages/").removesuffix(".py").replace("/", ".")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name.rpartition(".")[2], module)
        spec.loader.exec_module(module)
        return module

    return load


def ending(function):
    try:
        function()
    except Exception as error:  # noqa: BLE001 -- whatever it is
        return ending_of(error)
    raise AssertionError("no exception")


def test_missing_data_is_found_by_types_and_origin(library, tmp_path):
    library("site-packages/huggingface_hub/errors.py")
    hub, requests = library("site-packages/transformers_hub.py"), library("site-packages/requests/exceptions.py")
    vision, nltk = library("site-packages/torchvision/datasets/mnist.py"), library("site-packages/nltk/data.py")
    datasets = library("site-packages/datasets/load.py")

    def unreachable():
        raise urllib.error.URLError("no network")

    def not_found():
        (tmp_path / "train.bin").read_bytes()

    found = [
        (lambda: hub.cached_file("org/model"), "org/model"),
        (lambda: requests.get("https://a.example/b"), "https://a.example/b"),
        (lambda: vision.read("mnist"), "mnist"),
        (lambda: nltk.find("punkt"), "punkt"),
        (lambda: datasets.load("org/data"), "org/data"),
        (unreachable, "<urlopen error no network>"),
        (not_found, str(tmp_path / "train.bin")),
    ]
    for function, missing in found:
        assert ending(function).missing == missing


def test_other_failures_are_those_of_the_program(library, tmp_path):
    def caught():
        try:
            (tmp_path / "cache").read_bytes()
        except FileNotFoundError:
            raise ValueError("model")  # noqa: B904 -- as programs do

    def answered():
        raise urllib.error.HTTPError("https://a.example", 404, "Not Found", {}, None)

    def no_tool():
        import subprocess

        subprocess.run([str(tmp_path / "compiler")], check=False)

    net = library("site-packages/torchvision/models/net.py")
    texts = (lambda: {}["Dataset not found"], lambda: net.read("x"), caught, answered, no_tool)
    assert [ending(each).missing for each in texts] == [""] * len(texts)


def test_verdict_names_the_data_also_of_a_child_process(tmp_path):
    missing = ending((tmp_path / "train.bin").read_bytes)
    failed = ending(lambda: {}[1])
    main = ProcessEvents(1, failed, is_main=True)
    child = ProcessEvents(2, missing)
    for processes in ([ProcessEvents(1, missing, is_main=True)], [main, child]):
        found = judge(processes, [])
        assert (found.verdict, found.text) == (Verdict.DID_NOT_FINISH, "did not finish: offline data")
        assert found.reasons[0] == f"Data is missing: {tmp_path}/train.bin. This says nothing about the model."
        assert found.message.startswith(f"{tmp_path}/train.bin is missing (FileNotFoundError: ")
    assert missing.how is How.EXCEPTION
    assert judge([main], []).text == "did not finish"
