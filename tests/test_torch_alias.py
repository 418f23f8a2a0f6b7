"""`forebay.torch_alias.install()`, in processes of its own. tests/test_import_as_torch.py runs whole programs."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

START = "from forebay.torch_alias import install\n"


def output_of(program: str) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_modules_of_torch_are_those_of_forebay():
    program = """
        import torch
        import torch.backends.cudnn
        import torch.cuda.memory as memory
        import torch.multiprocessing as processes
        from torch.cuda.streams import Stream
        import forebay
        import forebay.cuda
        print(torch.cuda is forebay.cuda, memory is forebay.cuda.memory, Stream is forebay.cuda.Stream)
        print(torch.cuda.__spec__.name, torch.cuda.memory.__spec__.name, torch.Tensor is forebay.Tensor)
        print(torch.backends.cudnn is forebay.backends.cudnn, torch.backends.mps is forebay.backends.mps)
        print(torch.float is forebay.float32, "cuda" in dir(torch), "empty" in dir(torch))
        install()
        print(sys.modules["torch"] is torch, processes.get_context("spawn").Process is not None)
    """
    expected = ["True True True", "forebay.cuda forebay.cuda.memory True", "True True", "True True True", "True True"]
    assert output_of(f"import sys\n{START}install()\n" + dedent(program)) == expected


def test_packages_find_torch_and_its_version():
    program = """
        import importlib.metadata, importlib.util
        import torch
        print(torch.__version__, importlib.metadata.version("torch"), importlib.metadata.metadata("torch")["Name"])
        print(importlib.util.find_spec("torch").name, importlib.util.find_spec("torch.nn"))
    """
    expected = ["2.15.0+forebay 2.15.0+forebay torch", "torch None"]
    assert output_of(f"{START}install()\n" + dedent(program)) == expected


def test_missing_modules_and_names_are_reported():
    program = """
        import torch
        for statement in ("import torch.nn", "import torch.cuda.missing", "import torch.runtime", "torch.matmul"):
            try:
                exec(statement)
            except (ImportError, AttributeError) as error:
                print(type(error).__name__, error)
    """
    assert output_of(f"{START}install()\n" + dedent(program)) == [
        "ModuleNotFoundError No module named 'torch.nn'",
        "ModuleNotFoundError No module named 'torch.cuda.missing'",
        "ModuleNotFoundError No module named 'torch.runtime'",
        "AttributeError module 'torch' (forebay) has no attribute 'matmul'",
    ]


def test_placeholders_are_classes_without_instances():
    program = """
        import copy
        import torch, torch.nn.functional as functional
        from torch import distributed, nn
        from torch.optim.lr_scheduler import LRScheduler
        class Net(nn.Module): ...
        def annotated(model: nn.Module | None = None) -> "list[nn.Parameter]": ...
        print(isinstance(3, nn.Module), issubclass(Net, nn.Module), nn.Module is torch.nn.Module, nn.Module.__name__)
        print(copy.deepcopy(nn.Module) is nn.Module, LRScheduler.__module__, hasattr(nn, "__wrapped__"))
        print(distributed.is_available(), distributed.ReduceOp.SUM.__name__)
        for make in (Net, lambda: functional.relu(3)):
            try:
                make()
            except RuntimeError as error:
                print(type(error).__name__, error)
    """
    assert output_of(f"{START}install(['nn', 'optim', 'distributed'])\n" + dedent(program)) == [
        "False True True Module",
        "True torch.optim.lr_scheduler False",
        "False SUM",
        "Unsupported __main__.Net needs PyTorch: forebay is a runtime",
        "Unsupported torch.nn.functional.relu needs PyTorch: forebay is a runtime",
    ]


def test_pytorch_that_is_already_imported_is_not_replaced():
    program = """
        import sys, types
        torch = sys.modules["torch"] = types.ModuleType("torch")
        try:
            install()
        except RuntimeError as error:
            print(error)
        print(sys.modules["torch"] is torch, len([each for each in sys.meta_path if "torch_alias" in repr(each)]))
    """
    expected = ["this process has imported PyTorch; call forebay.torch_alias.install() first", "True 0"]
    assert output_of(START + dedent(program)) == expected
