"""Sites of stacks of other machines, the choices of the user, and the matching of backward and forward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.snapshot_scenes import Scene

from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice, site_choice
from forebay.records.sites import find_sites
from forebay.snapshot.analysis.summary import sites

PACKAGES = "/opt/conda/lib/python3.11/site-packages"
PYTHON = "/opt/conda/lib/libpython3.11.so.1.0:1731810 _PyEval_EvalFrameDefault"
OUTSIDE = ("/opt/conda/bin/python3.11:4224 _start", "/lib/libc.so.6:160329 ??", PYTHON)
ALLOCATOR = (
    "??:0 at::detail::empty_cuda(c10::ArrayRef<long>)",
    "CUDACachingAllocator.cpp:0 c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc",
    "??:0 torch::CapturedTraceback::gather(bool, bool, bool)",
)
THREAD = ("clone3.S:0 ??", "thread48.o:0 execute_native_thread_routine", "??:0 torch::autograd::Engine::thread_main")
TRAINER = f"{PACKAGES}/transformers/trainer.py:2240 Trainer.train"


def operator(name: str) -> str:
    return f"??:0 at::_ops::{name}::call(at::Tensor const&)"


def node(name: str) -> str:
    return f"??:0 torch::autograd::generated::{name}::apply(std::vector<at::Tensor>&&)"


def labels_of(*stacks: tuple[str, ...], choice: SiteChoice = DEFAULT_CHOICE) -> list[str]:
    """Return the labels of the sites of stacks, each with one more byte than the next."""
    scene = Scene()
    for number, calls in enumerate(stacks):
        scene.allocate(1000 - number, scene.stack(*calls))
    snapshot = replace(scene.snapshot(), site_choice=choice)
    found = find_sites(snapshot)
    rows = snapshot.trace["stack"][snapshot.trace["action"] == 1]
    return [found.labels[found.of_stack[row]] for row in rows]


@pytest.mark.parametrize(
    ("calls", "label"),
    [
        ((*OUTSIDE, "/w/train.py:9 main", PYTHON, operator("mul_Tensor"), *ALLOCATOR), "/w/train.py:9 main"),
        (("<ipython-input-3-1a2b>:2 <module>", f"{PACKAGES}/numpy/core/numeric.py:1 ones"), "cell [3]:2"),
        (("<ipython-input-3-1a2b>:2 load",), "cell [3]:2 load"),
        (("train.py:1 main", "/tmp/torchinductor_ada/ab/cab.py:40 call"), "train.py:1 main"),
        (("train.py:1 main", "<string>:2 __init__"), "train.py:1 main"),
        (("<string>:1 <module>", f"{PACKAGES}/pandas/a.py:1 f"), "<string>:1 <module>"),
        (
            ("/usr/lib/python3.11/threading.py:1002 Thread._bootstrap", f"{PACKAGES}/dali/worker.py:7 run"),
            "dali/worker.py:7 run",
        ),
        (("/usr/lib/python3.11/threading.py:1002 Thread._bootstrap",), "(native code)"),
        ((f"{PACKAGES}/pandas/a.py:1 f", f"{PACKAGES}/numpy/b.py:2 g"), "pandas/a.py:1 f"),
        ((*OUTSIDE, *ALLOCATOR), "(native code)"),
        (THREAD, "(native code)"),
        ((*THREAD, operator("mul_Tensor"), *ALLOCATOR), "at::_ops::mul_Tensor::call(at::Tensor const&)"),
        ((*THREAD, node("SoftmaxBackward0"), operator("_softmax_backward_data"), *ALLOCATOR), "SoftmaxBackward0"),
        (
            (*THREAD, "??:0 torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", *ALLOCATOR),
            "AccumulateGrad",
        ),
        (
            ("train.py:40 step", f"{PACKAGES}/torch/_tensor.py:5 backward", node("MulBackward0"), *ALLOCATOR),
            "train.py:40 step → MulBackward0",
        ),
        (  # a checkpoint runs the forward pass again
            (*THREAD, node("MulBackward0"), f"{PACKAGES}/torch/utils/checkpoint.py:5 unpack", "model.py:3 forward"),
            "model.py:3 forward",
        ),
        (
            (*THREAD, "??:0 torch::autograd::PyNode::apply(std::vector<at::Tensor>&&)", "op.py:3 Op.backward"),
            "op.py:3 Op.backward",
        ),
    ],
)
def test_site_of_stack(calls: tuple[str, ...], label: str) -> None:
    assert labels_of(calls) == [label]


def test_backward_memory_has_the_only_line_of_the_forward_pass_that_made_its_node() -> None:
    forward = ("train.py:9 step", "model.py:31 attend", operator("softmax_int"), operator("_softmax"), *ALLOCATOR)
    other = ("train.py:9 step", "model.py:40 loss", operator("_log_softmax"), *ALLOCATOR)
    backward = (*THREAD, node("SoftmaxBackward0"), operator("_softmax_backward_data"), *ALLOCATOR)
    assert labels_of(forward, other, backward)[2] == "model.py:31 attend ← SoftmaxBackward0"


@pytest.mark.parametrize(
    ("lines", "label"),
    [((4, 3), "MulBackward0 of model.py:3 or model.py:4"), ((1, 2, 3, 4), "MulBackward0"), ((), "MulBackward0")],
)
def test_backward_memory_of_nodes_that_several_lines_made_names_a_few(lines: tuple[int, ...], label: str) -> None:
    forward = [("train.py:9 step", f"model.py:{line} f", operator("mul_Tensor"), *ALLOCATOR) for line in lines]
    backward = (*THREAD, node("MulBackward0"), operator("mul_Tensor"), *ALLOCATOR)
    assert labels_of(*forward, backward)[-1] == label


def test_equal_frames_of_two_stacks_are_one_site() -> None:
    calls = ("train.py:1 main", "train.py:9 load")
    assert (
        labels_of((*calls, f"{PACKAGES}/numpy/a.py:1 f"), (*calls, f"{PACKAGES}/numpy/a.py:2 f"), calls)
        == ["train.py:9 load"] * 3
    )


def test_labels_of_different_sites_differ() -> None:
    names = [f"/{folder}/site-packages/pandas/a.py:1 f" for folder in "ab"]
    assert labels_of(*((name,) for name in names)) == ["pandas/a.py:1 f", "pandas/a.py:1 f (2)"]


@pytest.mark.parametrize(
    ("choice", "label"),
    [
        (site_choice(), "train.py:9 step"),
        (site_choice(depth=2), "train.py:9 step, train.py:30 main"),
        (site_choice(depth=9), "train.py:9 step, train.py:30 main, cli.py:1 <module>"),
        (site_choice(library=True), "torch/nn/modules/linear.py:4 Linear.forward"),
        (site_choice(pattern=r"trainer\.py"), "transformers/trainer.py:2240 Trainer.train"),
        (site_choice(pattern="no such frame"), "train.py:9 step"),
        (site_choice(categories=["loss=loss", "model=nn/modules"]), "model"),
        (site_choice(categories=["loss=loss"]), "(other)"),
        (site_choice(categories=["all=.", "model=nn/modules"]), "all"),
    ],
)
def test_choice_of_sites(choice: SiteChoice, label: str) -> None:
    calls = (
        "cli.py:1 <module>", "train.py:30 main", TRAINER, "train.py:9 step",
        f"{PACKAGES}/torch/nn/modules/linear.py:4 Linear.forward",
    )  # fmt: skip
    assert labels_of(calls, choice=choice) == [label]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"depth": 0}, "from 1 to 100, not 0"),
        ({"depth": 101}, "from 1 to 100, not 101"),
        ({"pattern": "("}, "no regular expression"),
        ({"categories": ["loss"]}, "NAME=REGEX"),
        ({"categories": ["loss=["]}, "no regular expression"),
    ],
)
def test_wrong_choice_is_refused(wrong: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        site_choice(**wrong)


def test_choice_can_be_changed() -> None:
    scene = Scene()
    scene.allocate(512, scene.stack("train.py:30 main", "train.py:9 step"))
    snapshot = scene.snapshot()
    for depth, label in ((1, "train.py:9 step"), (2, "train.py:9 step, train.py:30 main"), (1, "train.py:9 step")):
        chosen = replace(snapshot, site_choice=site_choice(depth=depth))
        assert [use.label for use in sites(chosen)] == [label]
