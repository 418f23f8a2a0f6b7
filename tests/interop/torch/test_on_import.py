"""Import hook for PyTorch, with a package of that name that contains nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from forebay.interop.torch import on_import


@pytest.fixture
def torch_folder(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("from torch import inner\nis_ready = True\n")
    (tmp_path / "torch" / "inner.py").write_text("value = 1\n")
    return tmp_path


def run(folder, source, **variables):
    paths = os.pathsep.join(filter(None, [variables.pop("PYTHONPATH", ""), str(folder), os.environ["PYTHONPATH"]]))
    done = subprocess.run(
        [sys.executable, "-c", dedent(source)], env=os.environ | {"PYTHONPATH": paths} | variables, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def source_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(on_import.__file__).parents[3])]))


def test_function_is_called_once_after_the_import(torch_folder):
    source = """
        import sys
        from forebay.interop.torch import on_import
        on_import.install(lambda: print("after", sys.modules["torch"].is_ready))
        import json, torch.inner, torch
        print(torch.__spec__.loader is torch.__loader__, type(torch.__loader__).__name__, torch.inner.value)
    """
    assert run(torch_folder, source) == "after True\nTrue SourceFileLoader 1\n"


def test_function_is_called_at_once_if_pytorch_is_imported(torch_folder):
    source = """
        import torch
        from forebay.interop.torch import on_import
        on_import.install(lambda: print("after"))
        print("end")
    """
    assert run(torch_folder, source) == "after\nend\n"


def test_hook_that_is_removed_does_nothing(torch_folder):
    source = """
        from forebay.interop.torch import on_import
        on_import.install(lambda: print("after"))
        on_import.uninstall()
        import torch
    """
    assert run(torch_folder, source) == ""


def test_missing_pytorch_raises_its_own_error(tmp_path):
    source = """
        import sys
        from forebay.interop.torch import on_import
        sys.path[:] = [each for each in sys.path if "packages" not in each]
        on_import.install(lambda: print("after"))
        try:
            import torch
        except ModuleNotFoundError as error:
            print(error.name, error)
    """
    assert run(tmp_path, source) == "torch No module named 'torch'\n"


STARTED = """
    import sys
    hooks = [each for each in sys.meta_path if type(each).__name__ == "ImportHook"]
    print(len(hooks), "forebay" in sys.modules, [each for each in sys.path if each.endswith("startup")])
"""


def test_child_process_gets_the_hook_and_nothing_else(tmp_path):
    startup = str(Path(on_import.__file__).with_name("startup"))
    assert (
        run(tmp_path, STARTED, PYTHONPATH=startup, FOREBAY_TORCH="shapes") == "6 False []\n"
    )  # one hook for each module
    assert run(tmp_path, STARTED, PYTHONPATH=startup, FOREBAY_TORCH="") == "0 False []\n"


def test_child_process_of_a_run_without_values_silences_services_and_redirects_files(tmp_path):
    startup = str(Path(on_import.__file__).with_name("startup"))
    private = tmp_path / "private"
    for name in ("upper", "deleted"):
        (private / name).mkdir(parents=True)
    (tmp_path / "user.txt").write_text("user")
    source = (
        STARTED
        + f"""
    open({str(tmp_path / "user.txt")!r}, "w").write("new")
    print(open({str(tmp_path / "user.txt")!r}).read(), "forebay" in sys.modules)
    """
    )
    folder = json.dumps({"folder": str(private), "real": [], "parent": 0})
    variables = {"FOREBAY_TORCH": "shapes", "FOREBAY_REHEARSAL": "inside", "FOREBAY_REHEARSAL_FOLDER": folder}
    assert run(tmp_path, source, PYTHONPATH=startup, **variables) == "9 False []\nnew False\n"
    assert (tmp_path / "user.txt").read_text() == "user"


def test_sitecustomize_of_the_program_is_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('customized')\n")
    startup = str(Path(on_import.__file__).with_name("startup"))
    source = "import sys; print(sys.modules['sitecustomize'].__file__)"
    assert run(tmp_path, source, PYTHONPATH=startup) == f"customized\n{tmp_path / 'sitecustomize.py'}\n"


def test_environment_is_set_once(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/a")
    monkeypatch.setenv(on_import.VARIABLE, "")
    on_import.set_environment("compute")
    on_import.set_environment("shapes")
    assert os.environ[on_import.VARIABLE] == "shapes"
    assert os.environ["PYTHONPATH"].split(os.pathsep)[1:] == ["/a"]
