"""What needs operators, or a GPU: it is there, says why it cannot work, and works as far as it can without."""

from __future__ import annotations

import importlib
import os

import pytest

import forebay
from forebay.cuda import amp, gds, green_contexts, jiterator, tunable
from forebay.faces.unsupported import unsupported, unsupported_class

libraries = importlib.import_module("forebay.cuda._libraries")
KERNEL = "template <typename T> T twice(T x, T factor) { return factor * x; }"


@pytest.fixture
def two_gpus():
    with forebay.emulate("cuda", count=2, memory="64MiB"):
        yield


@pytest.fixture(autouse=True)
def fresh_switches(monkeypatch):
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
def test_it_says_what_is_not_supported_why_and_what_to_do(call):
    with pytest.raises(forebay.Unsupported, match=r"^forebay\.cuda\.[\w.]+ is not supported: .+\. \w.+\.$"):
        call()


def test_what_does_not_fit_the_signature_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_smss'"):
        green_contexts.GreenContext(num_smss=3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        tunable.tune_gemm_in_file()


def test_a_file_for_gpudirect_is_not_made(tmp_path):
    path = tmp_path / "new"
    with pytest.raises(forebay.Unsupported, match=r"^forebay\.cuda\.gds\.GdsFile is not"):
        gds.GdsFile(str(path), os.O_CREAT | os.O_RDWR)
    assert not path.exists()
    assert not gds.is_available()


def test_members_of_each_kind_name_themselves():
    refused = unsupported_class(
        "m",
        "C",
        "no. Why not.",
        "call(self, x=1)",
        "@staticmethod make()",
        "@classmethod find(cls)",
        "@property size(self)",
    )
    scene = refused()  # no __init__ was named
    for call, name in (
        (scene.call, "call"),
        (refused.make, "make"),
        (refused.find, "find"),
        (lambda: scene.size, "size"),
    ):
        with pytest.raises(forebay.Unsupported, match=rf"^m\.C\.{name} is not supported: no\. Why not\.$"):
            call()
    assert refused.__doc__ == "Not supported: no. Why not."
    assert unsupported("m", "f(a, *, b=2)", "no.").__name__ == "f"


def test_no_device_is_divided():
    assert green_contexts.get_num_locality_domains() == 1
    assert green_contexts.is_localization_supported(0) is False


class Optimizer:
    def step(self, *args, **kwargs):
        return args, kwargs


def test_mixed_precision_that_is_off_does_nothing():
    assert amp.amp_definitely_not_available()
    with amp.autocast(enabled=False) as entered:
        assert isinstance(entered, amp.autocast)
    with pytest.raises(ZeroDivisionError), amp.autocast(False):
        1 / 0  # noqa: B018 -- it passes through
    assert amp.autocast(enabled=False)(lambda x: x + 1)(2) == 3
    scaler, outputs = amp.GradScaler(enabled=False), object()
    assert scaler.scale(outputs) is outputs
    scaler.unscale_(Optimizer())
    assert scaler.step(Optimizer(), 1, closure=2) == ((1,), {"closure": 2})
    scaler.update(3.0)
    scaler.load_state_dict({"scale": 8.0})
    assert (scaler.is_enabled(), scaler.get_scale(), scaler.state_dict()) == (False, 1.0, {})


def test_a_scaler_that_is_off_keeps_its_numbers():
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
def test_a_kernel_is_the_last_function_of_its_code(code, name):
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
def test_code_that_is_no_template_is_refused(code):
    with pytest.raises(Exception, match=r"^Couldn't parse code, please check correctness:\n ") as caught:
        jiterator._create_jit_fn(code)
    assert type(caught.value) is Exception
    assert str(caught.value).endswith(code)


def test_code_that_is_no_text_is_a_type_error():
    with pytest.raises(TypeError):
        jiterator._create_jit_fn(3)


def test_a_kernel_without_a_gpu_says_so_when_it_is_called():
    with pytest.raises(
        AssertionError, match=r"^Jiterator is only supported on CUDA and ROCm GPUs, none are available\.$"
    ):
        jiterator._create_jit_fn(KERNEL)(1)


@pytest.mark.usefixtures("two_gpus")
def test_a_kernel_checks_its_arguments_before_it_says_why_it_cannot_run():
    kernel = jiterator._create_multi_output_jit_fn(KERNEL, 2, factor=1)
    assert (kernel.return_by_ref, kernel.num_outputs) == (True, 2)
    with pytest.raises(AssertionError, match=r"^jiterator only supports up to 8 tensor inputs, got 9$"):
        kernel(*range(9))
    with pytest.raises(KeyError, match=r"factr is not declared in function definition"):
        kernel(1, factr=3)
    with pytest.raises(forebay.Unsupported, match=r"^the kernel twice cannot run: CUDA C needs"):
        kernel(1, factor=3)


@pytest.mark.parametrize(
    ("switch", "state", "first", "name"),
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
def test_a_switch_keeps_what_is_set(switch, state, first, name):
    assert state() is first
    switch(not first)
    assert state() is not first
    with pytest.raises(RuntimeError, match=f"^cuda_{name} expects a bool, but got int$"):
        switch(1)
    assert state() is not first
    switch()
    assert state() is True


@pytest.mark.parametrize(
    ("setter", "getter", "first", "least"),
    [
        ("set_max_tuning_duration", "get_max_tuning_duration", 30, 0),
        ("set_max_tuning_iterations", "get_max_tuning_iterations", 100, 0),
        ("set_cublaslt_requested_algo_count", "get_cublaslt_requested_algo_count", 8, 1),
    ],
)
def test_a_number_is_kept_and_not_below_its_least(setter, getter, first, least):
    get, change = getattr(tunable, getter), getattr(tunable, setter)
    assert get() == first
    change(5)
    assert get() == 5
    change(-3)
    assert get() == least
    for bad, word in ((1.5, "float"), ("a", "str"), (True, "bool"), (None, "NoneType")):
        with pytest.raises(RuntimeError, match=f"^cuda_tunableop_{setter} expects an int, but got {word}$"):
            change(bad)


def test_the_rotating_buffer_is_in_mib_when_set_and_in_bytes_when_read(two_gpus):
    tunable.set_rotating_buffer_size(5)
    assert tunable.get_rotating_buffer_size() == 5 << 20
    tunable.set_rotating_buffer_size(0)
    assert tunable.get_rotating_buffer_size() == 0
    tunable.set_rotating_buffer_size(-1)
    opened = forebay.runtime.devices.current.opened_for("cuda")
    assert tunable.get_rotating_buffer_size() == opened.port.props.details.get("L2_cache_size", 0)


@pytest.mark.parametrize(
    ("name", "numbered"),
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
def test_the_file_name_gets_the_current_devices_index(two_gpus, name, numbered):
    with forebay.use_device("cuda:1"):
        tunable.set_filename(name)
        assert tunable.get_filename() == name
        tunable.set_filename(name, insert_device_ordinal=True)
        assert tunable.get_filename() == numbered


def test_nothing_is_tuned_read_or_written(tmp_path):
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


def test_tolerances_are_checked():
    tunable.set_numerical_check_tolerances(True)
    with pytest.raises(RuntimeError, match=r"^First argument must be a boolean, got str$"):
        tunable.set_numerical_check_tolerances("x")
    with pytest.raises(RuntimeError, match=r"^Third argument \(rtol\) must be a float, got int$"):
        tunable.set_numerical_check_tolerances(True, -1.0, 2)
