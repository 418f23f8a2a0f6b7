"""Kinds of frames, over the paths of other machines."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from forebay.records.frame_kinds import FrameKind, is_own, kind_of_file, kind_of_frame, short_path

OWN = """
/home/ada/train.py
/Users/ada/Documents/My Project/train.py
C:\\work\\net\\model.py
\\\\server\\share\\net\\model.py
D:/a/net/lib/layers.py
/content/train.py
/content/drive/MyDrive/colab/train.py
/kaggle/working/train.py
/kaggle/input/my-code/model.py
/tmp/ipykernel_17/3105878423.py
C:\\Users\\ada\\AppData\\Local\\Temp\\ipykernel_4711\\3105878423.py
/tmp/ipython-input-3-3105878423.py
<ipython-input-7-9b3a1c2d4e5f>
<command-2718281828>
<stdin>
<python-input-0>
<console>
<doctest model.Net[2]>
/home/ada/src/transformers/src/transformers/trainer.py
/home/ada/numpy/train.py
/home/ada/torch/train.py
/home/ada/lib/python/train.py
/home/ada/python-course/lib/train.py
/home/ada/envs.py
/srv/app.pyz/train.py
/home/ada/.pex/unzipped_pexes/3f/train.py
/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_1f/train.py
/srv/jobs/train
train.py
model.py
notebook.ipynb
"""

LIBRARY = """
/opt/conda/lib/python3.10/site-packages/transformers/trainer.py
/home/ada/miniconda3/envs/net/lib/python3.12/site-packages/pandas/core/frame.py
C:\\Users\\ada\\miniconda3\\envs\\net\\Lib\\site-packages\\pandas\\core\\frame.py
C:\\Users\\ada\\net\\.venv\\Lib\\site-packages\\einops\\einops.py
/usr/local/lib/python3.10/dist-packages/transformers/trainer.py
/usr/lib/python3/dist-packages/scipy/fft.py
/home/ada/net/venv/lib64/python3.9/site-packages/lightning/trainer.py
/home/ada/.local/lib/python3.11/site-packages/sklearn/base.py
/home/ada/.pex/installed_wheels/1f/pandas-2.2.0-cp311-linux_x86_64.whl/pandas/core/frame.py
/srv/app.pex/.deps/einops-0.8.0-py3-none-any.whl/einops/einops.py
/usr/lib/python2.7/site-packages/old-1.0-py2.7.egg/old/x.py
/spark/python/lib/pyspark.zip/pyspark/worker.py
"""

STANDARD = """
/usr/lib/python3.11/json/decoder.py
/opt/conda/lib/python3.10/copy.py
C:\\Python312\\Lib\\copy.py
C:\\Users\\ada\\AppData\\Local\\Programs\\Python\\Python311\\Lib\\copy.py
/Library/Frameworks/Python.framework/Versions/3.12/lib/python3.12/copy.py
/home/ada/.local/share/uv/python/cpython-3.12.1-linux-x86_64-gnu/lib/python3.12/copy.py
C:\\embedded\\python311.zip\\copy.py
/opt/conda/lib/python3.10/site-packages/torch/nn/modules/module.py
/opt/pytorch/pytorch/torch/nn/functional.py
/usr/local/lib/python3.10/dist-packages/numpy/_core/numeric.py
torch/nn/modules/module.py
module.py
_tensor.py
"""

NEVER = """
/usr/lib/python3.11/threading.py
/usr/lib/python3.11/runpy.py
/usr/lib/python3.11/multiprocessing/process.py
/usr/lib/python3.11/concurrent/futures/thread.py
C:\\Python312\\Lib\\threading.py
/opt/conda/bin/torchrun
/usr/local/bin/accelerate
C:\\Users\\ada\\net\\.venv\\Scripts\\accelerate.exe\\__main__.py
/usr/local/lib/python3.10/dist-packages/colab_kernel_launcher.py
/opt/conda/lib/python3.10/site-packages/forebay/commands/run.py
/home/ada/forebay/src/forebay/commands/run.py
threading.py
runpy.py
<frozen runpy>
<frozen importlib._bootstrap>
<__array_function__ internals>
<eval_with_key>.12
<attrs generated init net.Config>
/tmp/torchinductor_ada/ab/cabcdef.py
C:\\Users\\ada\\AppData\\Local\\Temp\\torchinductor_ada\\ab\\cabcdef.py
/home/ada/.triton/cache/1f/kernel.py
/opt/python3.11/lib/libpython3.11.so.1.0
/lib/x86_64-linux-gnu/libstdc++.so.6
/usr/lib/libSystem.B.dylib
C:\\Windows\\System32\\kernel32.dll
CUDACachingAllocator.cpp
/pytorch/aten/src/ATen/native/cuda/SoftMax.cu
../sysdeps/unix/sysv/linux/x86_64/clone3.S
thread48.o
/opt/python3.11/bin/python3.11
/usr/bin/python3
python
/Library/Frameworks/Python.framework/Versions/3.12/Python
[vdso]
??

at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>)
"""

TABLE = [
    *((path, FrameKind.OWN) for path in OWN.strip().splitlines()),
    *((path, FrameKind.LIBRARY) for path in LIBRARY.strip().splitlines()),
    *((path, FrameKind.STANDARD) for path in STANDARD.strip().splitlines()),
    *((path, FrameKind.NEVER) for path in NEVER.strip().splitlines()),
    ("<string>", FrameKind.TEXT),
    ("/x" * 5000, FrameKind.NEVER),
]


@pytest.mark.parametrize(("path", "kind"), TABLE)
def test_kind_of_file_of_any_machine(path: str, kind: FrameKind) -> None:
    assert kind_of_file(path) is kind


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("/home/ada/train.py", "main.<locals>.<listcomp>", FrameKind.OWN),
        ("/srv/jobs/train", "<module>", FrameKind.OWN),
        ("/srv/a.out", "at::_ops::mul_Tensor::call(at::Tensor const&)", FrameKind.NEVER),
        ("/srv/a.out", "_start", FrameKind.NEVER),
        ("/srv/a.out", "__libc_start_main", FrameKind.NEVER),
        ("/srv/a.out", "_PyEval_EvalFrameDefault", FrameKind.NEVER),
        ("/srv/a.out", "??", FrameKind.NEVER),
    ],
)
def test_kind_of_frame_with_native_name(file: str, name: str, kind: FrameKind) -> None:
    assert kind_of_frame(file, name) is kind


def test_kinds_of_this_interpreter_and_test() -> None:
    assert is_own(__file__)
    assert not is_own(np.__file__)
    assert not is_own(sys.modules["copy"].__file__ or "")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/ada/train.py", "/home/ada/train.py"),
        ("/opt/conda/lib/python3.10/site-packages/pandas/core/frame.py", "pandas/core/frame.py"),
        ("C:\\net\\.venv\\Lib\\site-packages\\pandas\\core\\frame.py", "pandas/core/frame.py"),
        ("/usr/lib/python3.11/json/decoder.py", "json/decoder.py"),
        ("<ipython-input-7-9b3a1c2d4e5f>", "cell [7]"),
        ("/tmp/ipython-input-3-3105878423.py", "cell [3]"),
        ("/tmp/ipykernel_17/3105878423.py", "cell 3105878423"),
        ("/usr/lib/libc.so.6", "/usr/lib/libc.so.6"),
    ],
)
def test_short_path(path: str, shown: str) -> None:
    assert short_path(path) == shown
