"""Functions that need operators or a GPU: they exist, raise Unsupported with a reason, and check their arguments."""

from __future__ import annotations

import importlib
import os

import pytest

import forebay
from forebay.cuda import amp, gds, green_contexts, jiterator, tunable
from forebay.names.unsupported import REASONS, unsupported, unsupported_class

libraries = importlib.import_module("forebay.cuda._libraries")
KERNEL = "template <typename T> T twice(T x, T factor) { return factor * x; }"


@pytest.fixture
def two_gpus():
    with forebay.emulate("cuda", count=2, memory="64MiB"):
        yield


@pytest.fixture(autouse=True)
def reset_tunable_state(monkeypatch):
    monkeypatch.setattr(tunable, "_state", tunable._State())


@pytest.mark.parametrize(
    "call",
    [
        libraries.current_blas_handle,
        libraries.current_solver_handle,
        lambda: libraries._compile_kernel("__global__ void f() {}", "f"),
        amp.autocast,
        lambda: amp.autocast(dtype="bfloat16"),
        amp.GradScaler,
        lambda: amp.custom_fwd(lambda ctx: ctx),
        lambda: amp.custom_bwd(lambda ctx: ctx),
        lambda: gds.gds_register_buffer(None),
        lambda: gds.gds_deregister_buffer(None),
        green_contexts.GreenContext,
        lambda: green_contexts.GreenContext.create(num_sms=8),
        lambda: green_contexts.GreenContext.split(num_sms=(8, 8)),
        green_contexts.GreenContext.max_workqueue_concurrency,
        lambda: green_contexts.SMPartition(None, 0),
        green_contexts.SMPartition.from_device,
        lambda: tunable.tune_gemm_in_file("untuned.csv"),
        lambda: tunable.mgpu_tune_gemm_in_file("untuned?.csv", 1),
        tunable.write_file,
    ],
)
def test_unsupported_error_contains_name_reason_and_advice(call):
    with pytest.raises(forebay.Unsupported, match=r"^forebay\.cuda\.[\w.]+ is not supported: .+\. \w.+\.$"):
        call()


def test_signature_mismatch_raises_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_smss'"):
        green_contexts.GreenContext(num_smss=3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        tunable.tune_gemm_in_file()


def test_gds_file_is_not_created(tmp_path):
    path = tmp_path / "new"
    with pytest.raises(forebay.Unsupported, match=r"^forebay\.cuda\.gds\.GdsFile is not"):
        gds.GdsFile(str(path), os.O_CREAT | os.O_RDWR)
    assert not path.exists()
    assert not gds.is_available()


def test_members_of_unsupported_class_raise_with_their_names(monkeypatch):
    monkeypatch.setitem(REASONS, "m", "no. Do that instead.")
    cls = unsupported_class(
        "m",
        "C",
        "call(self, x=1)",
        "@staticmethod make()",
        "@classmethod find(cls)",
        "@property size(self)",
    )
    instance = cls()  # __init__ is not in the list
    for call, name in (
        (instance.call, "call"),
        (cls.make, "make"),
        (cls.find, "find"),
        (lambda: instance.size, "size"),
    ):
        with pytest.raises(forebay.Unsupported, match=rf"^m\.C\.{name} is not supported: no\. Do that instead\.$"):
            call()
    assert cls.__doc__ == "Raise Unsupported: no. Do that instead."
    function = unsupported("m", "f(a, *, b=2)")
    assert (function.__name__, "b : object, optional" in function.__doc__) == ("f", True)
    with pytest.raises(LookupError, match=r"n\.f has no reason"):
        unsupported("n", "f()")


def test_devices_have_one_locality_domain():
    assert green_contexts.get_num_locality_domains() == 1
    assert green_contexts.is_localization_supported(0) is False


class Optimizer:
    def step(self, *args, **kwargs):
        return args, kwargs


def test_disabled_mixed_precision_does_nothing():
    assert amp.amp_definitely_not_available()
    with amp.autocast(enabled=False) as entered:
        assert isinstance(entered, amp.autocast)
    with pytest.raises(ZeroDivisionError), amp.autocast(False):
        1 / 0  # noqa: B018 -- must propagate
    assert amp.autocast(enabled=False)(lambda x: x + 1)(2) == 3
    scaler, outputs = amp.GradScaler(enabled=False), object()
    assert scaler.scale(outputs) is outputs
    scaler.unscale_(Optimizer())
    assert scaler.step(Optimizer(), 1, closure=2) == ((1,), {"closure": 2})
    scaler.update(3.0)
    scaler.load_state_dict({"scale": 8.0})
    assert (scaler.is_enabled(), scaler.get_scale(), scaler.state_dict()) == (False, 1.0, {})


def test_disabled_scaler_stores_factors():
    scaler = amp.GradScaler(growth_factor=3.0, enabled=False)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (3.0, 0.5, 2000)
    scaler.set_growth_factor(4.0)
    scaler.set_backoff_factor(0.1)
    scaler.set_growth_interval(5)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (4.0, 0.1, 5)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (KERNEL, "twice"),
        ("template<typename T>T f(T x){return x;}", "f"),
        ("template <typename T> T f(T x) {return x;} // more", "f"),
        ("  template <typename T>\nT g(T a) { return a; }\ntemplate <typename T> T f(T x) { return g(x); }", "f"),
        ("template <typename T, typename U> T f(T x) {return x;}", "f"),
    ],
)
def test_kernel_is_last_function_in_code(code, name):
    kernel = jiterator._create_jit_fn(code, factor=2)
    assert (kernel.kernel_name, kernel.code_string, kernel.kwargs_dict) == (name, code, {"factor": 2})
    assert (kernel.return_by_ref, kernel.num_outputs) == (False, 1)


@pytest.mark.parametrize(
    "code",
    [
        "nonsense",
        "",
        "template <typename T> T f() {return 1;}",
        "template <typename T> T f(T x) {}",
        "template <> T f(T x) {return 1;}",
        "template <class T> unsigned int f(T x) {return 1;}",
    ],
)
def test_code_without_template_raises(code):
    with pytest.raises(Exception, match=r"^Couldn't parse code, please check correctness:\n ") as caught:
        jiterator._create_jit_fn(code)
    assert type(caught.value) is Exception
    assert str(caught.value).endswith(code)


def test_code_must_be_a_string():
    with pytest.raises(TypeError):
        jiterator._create_jit_fn(3)


def test_kernel_call_without_gpu_raises():
    with pytest.raises(
        AssertionError, match=r"^Jiterator is only supported on CUDA and ROCm GPUs, none are available\.$"
    ):
        jiterator._create_jit_fn(KERNEL)(1)


@pytest.mark.usefixtures("two_gpus")
def test_kernel_call_checks_arguments_before_raising_unsupported():
    kernel = jiterator._create_multi_output_jit_fn(KERNEL, 2, factor=1)
    assert (kernel.return_by_ref, kernel.num_outputs) == (True, 2)
    with pytest.raises(AssertionError, match=r"^jiterator only supports up to 8 tensor inputs, got 9$"):
        kernel(*range(9))
    with pytest.raises(KeyError, match=r"factr is not declared in function definition"):
        kernel(1, factr=3)
    with pytest.raises(forebay.Unsupported, match=r"^forebay\.cuda\.jiterator\.twice is not supported: CUDA C needs"):
        kernel(1, factor=3)


@pytest.mark.parametrize(
    ("setter", "getter", "initial", "name"),
    [
        (tunable.enable, tunable.is_enabled, False, "tunableop_enable"),
        (tunable.tuning_enable, tunable.tuning_is_enabled, True, "tunableop_tuning_enable"),
        (tunable.record_untuned_enable, tunable.record_untuned_is_enabled, False, "record_untuned_enable"),
        (
            tunable.wildcard_fallback_enable,
            tunable.wildcard_fallback_is_enabled,
            False,
            "tunableop_wildcard_fallback_enable",
        ),
    ],
)
def test_switch_is_stored(setter, getter, initial, name):
    assert getter() is initial
    setter(not initial)
    assert getter() is not initial
    with pytest.raises(RuntimeError, match=f"^cuda_{name} expects a bool, but got int$"):
        setter(1)
    assert getter() is not initial
    setter()
    assert getter() is True


@pytest.mark.parametrize(
    ("setter", "getter", "initial", "minimum"),
    [
        ("set_max_tuning_duration", "get_max_tuning_duration", 30, 0),
        ("set_max_tuning_iterations", "get_max_tuning_iterations", 100, 0),
        ("set_cublaslt_requested_algo_count", "get_cublaslt_requested_algo_count", 8, 1),
    ],
)
def test_number_is_stored_and_clamped(setter, getter, initial, minimum):
    get, change = getattr(tunable, getter), getattr(tunable, setter)
    assert get() == initial
    change(5)
    assert get() == 5
    change(-3)
    assert get() == minimum
    for bad, word in ((1.5, "float"), ("a", "str"), (True, "bool"), (None, "NoneType")):
        with pytest.raises(RuntimeError, match=f"^cuda_tunableop_{setter} expects an int, but got {word}$"):
            change(bad)


def test_rotating_buffer_size_is_set_in_mib_and_returned_in_bytes(two_gpus):
    tunable.set_rotating_buffer_size(5)
    assert tunable.get_rotating_buffer_size() == 5 << 20
    tunable.set_rotating_buffer_size(0)
    assert tunable.get_rotating_buffer_size() == 0
    tunable.set_rotating_buffer_size(-1)
    opened = forebay.runtime.devices.current.opened_for("cuda")
    assert tunable.get_rotating_buffer_size() == opened.port.props.details.get("L2_cache_size", 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f.csv", "f1.csv"),
        ("f%d.csv", "f1.csv"),
        ("%d%d", "1%d"),
        ("f", "f1"),
        ("a.b/c", "a1.b/c"),
        ("x.tar.gz", "x.tar1.gz"),
        (".csv", "1.csv"),
        ("a.", "a1."),
    ],
)
def test_filename_contains_current_device_index(two_gpus, name, expected):
    with forebay.use_device("cuda:1"):
        tunable.set_filename(name)
        assert tunable.get_filename() == name
        tunable.set_filename(name, insert_device_ordinal=True)
        assert tunable.get_filename() == expected


def test_results_are_never_read_or_written(tmp_path):
    results = tmp_path / "results.csv"
    results.write_text("GemmTunableOp_float_NT,nt_2_2_2,Gemm_1,0.1\n")
    assert (tunable.get_filename(), tunable.get_results(), tunable.get_validators()) == ("", (), ())
    assert tunable.read_file() is tunable.read_file(str(results)) is False
    assert tunable.get_results() == ()
    tunable.write_file_on_exit(True)
    with tunable.dynamic_dims_mask(M=True, BATCH=True):
        pass
    for call, word in ((tunable.read_file, "read_file"), (tunable.set_filename, "set_filename")):
        with pytest.raises(RuntimeError, match=f"^cuda_tunableop_{word} expects a string, but got int$"):
            call(3)


def test_tolerance_arguments_are_checked():
    tunable.set_numerical_check_tolerances(True)
    with pytest.raises(RuntimeError, match=r"^First argument must be a boolean, got str$"):
        tunable.set_numerical_check_tolerances("x")
    with pytest.raises(RuntimeError, match=r"^Third argument \(rtol\) must be a float, got int$"):
        tunable.set_numerical_check_tolerances(True, -1.0, 2)
