"""Labels of sites: fitted to a width, and different for different sites."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.records.model import Frame
from forebay.records.site_labels import fit_labels, label_of, strip_common_folder, unique_labels

LONG = "/home/ada/projects/a-rather-long-project-name/src/training/models"


def test_long_path_keeps_its_end() -> None:
    labels = [f"{LONG}/model.py:{line} update" for line in (10, 11)]
    assert fit_labels(labels, 100) == labels
    assert fit_labels(labels, 36) == ["…/src/training/models/model.py:10", "…/src/training/models/model.py:11"]
    assert fit_labels(labels, 14) == ["…/model.py:10", "…/model.py:11"]


def test_name_is_cut_before_the_path() -> None:
    assert fit_labels(["model.py:10 Network.forward_with_cache"], 24) == ["model.py:10 Network.for…"]
    assert fit_labels(["model.py:10 Network.forward_with_cache"], 12) == ["model.py:10"]


def test_labels_that_become_equal_are_numbered() -> None:
    labels = [f"/{folder}/models/model.py:10 f" for folder in ("first", "second")]
    assert fit_labels(labels, 20) == ["…/model.py:10 #1", "…/model.py:10 #2"]


@given(
    st.lists(
        st.from_regex(r"(/[a-c]{1,30}){1,8}\.py:[0-9]{1,4} [a-z]{1,30}", fullmatch=True), unique=True, max_size=40
    ),
    st.integers(12, 130),
)
def test_fitted_labels_fit_and_differ(labels: list[str], width: int) -> None:
    fitted = fit_labels(labels, width)
    assert all(len(label) <= width for label in fitted)
    assert len({*fitted}) == len(labels)


@given(st.lists(st.sampled_from(["a", "a (2)", "a (3)", "b"]), max_size=12))
def test_unique_labels_differ(labels: list[str]) -> None:
    found = unique_labels(labels)
    assert len({*found}) == len(labels)
    assert all(new.startswith(old) for old, new in zip(labels, found, strict=True))


def test_common_folder_is_that_of_absolute_paths() -> None:
    labels = ["/home/ada/a.py:1 f", "pandas/core/frame.py:3 g", "(no stack)", "/home/ada/b.py:2 g → pandas/x/y.py:1"]
    assert strip_common_folder(labels) == ("/home/ada/", ["a.py:1 f", *labels[1:3], "b.py:2 g → pandas/x/y.py:1"])


def test_common_folder_of_relative_paths() -> None:
    assert strip_common_folder(["net/a.py:1 f", "net/b.py:1 g"]) == ("net/", ["a.py:1 f", "b.py:1 g"])


def test_native_code_is_shown_without_its_shared_object() -> None:
    assert label_of(Frame("/usr/lib/libtorch.so", "at::native::sum(at::Tensor const&)", 4711)) == (
        "at::native::sum(at::Tensor const&)"
    )


def test_common_folder_is_left_out_of_each_line_of_a_site() -> None:
    labels = ["/home/ada/a.py:1 f, /home/ada/main.py:9 main", "/home/ada/b.py:2 g"]
    assert strip_common_folder(labels) == ("/home/ada/", ["a.py:1 f, main.py:9 main", "b.py:2 g"])


TWO = ["train.py:9 main → transformers/models/gpt2.py:7 GPT2.forward", "train.py:9 main ← SoftmaxBackward0"]


def test_two_lines_lose_names_and_folders_before_one_of_them() -> None:
    assert fit_labels(TWO[:1], 80) == TWO[:1]
    assert fit_labels(TWO[:1], 50) == ["train.py:9 main → transformers/models/gpt2.py:7"]
    assert fit_labels(TWO[:1], 30) == ["train.py:9 → …/gpt2.py:7"]
    assert fit_labels(TWO[:1], 16) == ["train.py:9 main"]


def test_two_lines_of_one_site_that_are_too_long_differ_by_the_second() -> None:
    assert fit_labels(TWO, 20) == ["→ …/gpt2.py:7", "← SoftmaxBackward0"]
