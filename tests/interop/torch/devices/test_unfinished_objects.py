"""Objects that `__new__` has made, and no constructor has finished: their use raises, and does not end the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

# Each class has a child of its own, which opens the devices after the fork.
PROGRAM = """
import copy, gc, os, pickle, signal, sys, warnings
import torch, forebay, forebay.interop.torch
warnings.simplefilter("ignore")
forebay.emulate("cuda")
patched = forebay.interop.torch.patch()
patched.__enter__()
WHERE = ("forebay.interop.torch", "forebay.cuda", "torch.cuda")
modules = [forebay] + [each for name, each in sys.modules.items() if name.startswith(WHERE)]
found = {value.__module__ + "." + value.__qualname__: value for module in modules for value in vars(module).values()
         if isinstance(value, type) and value.__module__.startswith("forebay")}
SKIPPED = ("__class__", "__init__", "__init_subclass__", "__new__", "__subclasshook__")
USES = [
    repr, str, hash, bool, len, iter, int, copy.copy, copy.deepcopy, pickle.dumps, torch.cuda.set_stream,
    lambda o: torch.cuda.stream(o).__enter__(), lambda o: torch.ones(1, device="cuda").record_stream(o),
    lambda o: torch.ones(3, device="cuda").normal_(generator=o), lambda o: torch.cuda.current_stream().wait_event(o),
    lambda o: torch.cuda.current_stream().wait_stream(o), lambda o: torch.cuda.Event().record(o),
    lambda o: torch.cuda.graph(o).__enter__(), lambda o: torch.cuda.use_mem_pool(o).__enter__(),
]

def use(made):
    torch.ones(1, device="cuda")
    try:
        unfinished = made.__new__(made)
    except Exception:
        return
    calls = [lambda o, name=name: getattr(o, name)() for name in dir(made) if name not in SKIPPED]
    for call in (*calls, *USES):
        try:
            call(unfinished)
        except SystemError:
            raise
        except BaseException:
            pass

gc.freeze()  # a capture collects garbage, in each child
for name, made in sorted(found.items()):
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(20)
        try:
            use(made)
        except SystemError:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print(name, status)
print(len(found) > 50)
"""


def test_unfinished_objects_of_all_classes_end_no_process():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-2000:]
