"""The device class against the results of `torch.device` in PyTorch 2.15, and the default device of a thread."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.markup import check_markup

import forebay
from forebay._base.device_spec import Device
from forebay.errors import ForebayError
from forebay.runtime.devices import open_device

KINDS = (
    "cpu, cuda, ipu, xpu, mkldnn, opengl, opencl, ideep, hip, ve, fpga, maia, xla, lazy, vulkan, mps, meta, hpu, mtia, "
    "privateuseone"
)
UNKNOWN = f"Expected one of {KINDS} device type at start of device string: "
OVERLOADS = (
    "device() received an invalid combination of arguments - got ({0}), but expected one of:\n"
    " * (forebay.device device)\n      didn't match because some of the arguments have invalid types: (!{0}!)\n"
    " * (str type, int index = -1)\n"
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cpu",), "device(type='cpu')"),
        (("cpu:0",), "device(type='cpu', index=0)"),
        (("cpu:1",), "device(type='cpu', index=1)"),
        (("cuda:127",), "device(type='cuda', index=127)"),
        (("mps:0",), "device(type='mps', index=0)"),
        (("meta",), "device(type='meta')"),
        (("cuda", 1), "device(type='cuda', index=1)"),
        (("cuda", None), "device(type='cuda')"),
        ((Device("cuda"),), "device(type='cuda')"),
    ],
)
def test_valid_device_arguments(arguments, text):
    assert repr(forebay.device(*arguments)) == text


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("",), RuntimeError, "Device string must not be empty"),
        (("cuda:x",), RuntimeError, "Invalid device string: 'cuda:x'"),
        (("cuda:-1",), RuntimeError, "Invalid device string: 'cuda:-1'"),
        (("cuda:01",), RuntimeError, "Invalid device string: 'cuda:01'"),
        (("cuda:",), RuntimeError, "Invalid device string: 'cuda:'"),
        (("cuda:1:2",), RuntimeError, "Invalid device string: 'cuda:1:2'"),
        ((" cuda",), RuntimeError, "Invalid device string: ' cuda'"),
        (("cuda0",), RuntimeError, "Invalid device string: 'cuda0'"),
        (("foo",), RuntimeError, f"{UNKNOWN}foo"),
        (("foo:1",), RuntimeError, f"{UNKNOWN}foo"),
        (("CUDA",), RuntimeError, f"{UNKNOWN}CUDA"),
        (("host",), RuntimeError, f"{UNKNOWN}host"),
        (
            ("cuda:99999999999999999999",),
            RuntimeError,
            "Could not parse device index '99999999999999999999' in device string 'cuda:99999999999999999999'",
        ),
        (
            ("cuda:1", 1),
            RuntimeError,
            "type (string) must not include an index because index was passed explicitly: cuda:1",
        ),
        (("cuda", -1), RuntimeError, "Device index must not be negative"),
        ((-1,), RuntimeError, "Device index must not be negative"),
        ((1,), RuntimeError, "Cannot access accelerator device when none is available."),
        (("cuda", 1.5), TypeError, "device(): argument 'index' (position 2) must be int, not float"),
        (("cuda", True), TypeError, "device(): argument 'index' (position 2) must be int, not bool"),
        (
            (Device("cuda:1"), 0),
            TypeError,
            "device(): argument 'type' (position 1) must be str, not forebay.device",
        ),
        ((True,), TypeError, OVERLOADS.format("bool")),
        ((1.5,), TypeError, OVERLOADS.format("float")),
        (([1, "cpu"],), TypeError, OVERLOADS.format("list").replace("!list!", "!list of [int, str]!")),
        (((1,),), TypeError, OVERLOADS.format("tuple").replace("!tuple!", "!tuple of (int,)!")),
        ((1, 1), TypeError, "device(): argument 'type' (position 1) must be str, not int"),
    ],
)
def test_invalid_device_arguments_raise_pytorchs_errors(arguments, error, text):
    with pytest.raises(error) as caught:
        forebay.device(*arguments)
    assert str(caught.value) == text


def test_device_accepts_keyword_arguments():
    assert Device(type="cuda", index=1) == Device(device="cuda:1") == Device("cuda:1")
    with pytest.raises(TypeError, match=r"got \(NoneType\)"):
        Device(None)


def test_index_without_kind_denotes_the_accelerator(emulated):
    assert repr(forebay.device(1)) == "device(type='cuda', index=1)"
    assert forebay.empty(1, device=1).device == Device("cuda:1")


def test_device_equality_hash_and_text():
    assert Device("cuda:1") == Device("cuda", 1)
    assert hash(Device("cuda:1")) == hash(Device("cuda", 1))
    assert Device("cuda") != Device("cuda:0")
    assert Device("cuda") != "cuda"
    assert (str(Device("cpu:0")), str(Device("cuda"))) == ("cpu:0", "cuda")
    assert (Device("cuda:1").type, Device("cuda:1").index, Device("cuda").index) == ("cuda", 1, None)


def test_device_attributes_are_read_only():
    with pytest.raises(AttributeError, match="objects is not writable"):
        Device("cuda").index = 3


def test_device_can_be_copied_and_pickled():
    device = Device("cuda:1")
    assert pickle.loads(pickle.dumps(device)) == copy.copy(device) == copy.deepcopy(device) == device
    assert device.__reduce__() == (Device, ("cuda", 1))
    assert (type(device).__module__, type(device).__name__) == ("forebay", "device")


def test_tensors_on_the_first_cpu_device_print_cpu(clean):
    for spelling in ("cpu", "cpu:0", Device("cpu", 0)):
        assert repr(forebay.empty(1, device=spelling).device) == "device(type='cpu')"


class TestDefaultDevice:
    @pytest.fixture(autouse=True)
    def cpu_afterwards(self, emulated):
        yield
        forebay.set_default_device(None)

    def test_default_device_is_the_cpu_despite_an_accelerator(self):
        assert forebay.get_default_device() == Device("cpu")
        assert forebay.empty(1).device == Device("cpu")

    def test_set_default_device_applies_to_factories(self):
        forebay.set_default_device("cuda")
        assert forebay.get_default_device() == forebay.empty(1).device == Device("cuda:0")
        forebay.cuda.set_device(1)
        assert forebay.get_default_device() == forebay.empty(1).device == Device("cuda:1")
        forebay.set_default_device("cuda:0")
        assert forebay.get_default_device() == forebay.empty(1).device == Device("cuda:0")

    def test_device_context_sets_the_default_but_not_the_current_device(self):
        with forebay.device("cuda:1") as entered:
            assert entered == forebay.get_default_device() == forebay.empty(1).device == Device("cuda:1")
            assert forebay.cuda.current_device() == 0
            with forebay.device("cpu"):
                assert forebay.empty(1).device == Device("cpu")
            assert forebay.empty(1).device == Device("cuda:1")
        assert forebay.empty(1).device == Device("cpu")

    def test_device_is_not_callable(self):
        assert not callable(forebay.device("cuda:1"))  # as in PyTorch: programs tell devices from functions so

    def test_default_device_is_per_thread(self):
        forebay.set_default_device("cuda:1")
        found = []
        thread = threading.Thread(target=lambda: found.append(forebay.empty(1).device))
        thread.start()
        thread.join(30)
        assert found == [Device("cpu")]

    def test_invalid_default_is_refused_and_changes_nothing(self):
        with pytest.raises(RuntimeError, match="Expected one of"):
            forebay.set_default_device("foo")
        with pytest.raises(TypeError, match="invalid combination"):
            forebay.set_default_device(1.5)
        assert forebay.get_default_device() == Device("cpu")

    def test_exit_without_enter_is_refused(self):
        with pytest.raises(RuntimeError, match="was not entered"):
            Device("cuda").__exit__(None, None, None)

    def test_streams_use_the_accelerator(self):
        with ThreadPoolExecutor(1) as thread:  # a thread that has not set a current device
            assert thread.submit(lambda: forebay.Stream().device).result(30) == Device("cuda:0")


def test_construction_and_device_count_do_not_open_a_device(fake):
    Device("fake:7")
    assert forebay.device_count("fake") == 2
    assert forebay.device_count("unknown") == 0
    assert fake.ports == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fake:2", "No device fake:2: there is only fake:0 to fake:1"),
        ("cpu:64", "No device cpu:64: there is only cpu"),
        ("mtia:0", "has no backend for mtia"),
        ("meta", "'meta' is not a kind of device"),
    ],
)
def test_missing_device_raises(fake, name, words):
    with pytest.raises(ForebayError) as caught:
        forebay.empty(1, device=name)
    assert words in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert Device(name) not in open_device._opened


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fake:1", "not open"),
        ("fake:2", "does not exist; devices of this kind: 2"),
        ("cpu", "allocated"),
        ("meta", "is not a kind of device"),
        ("mtia", "has no backend"),
    ],
)
def test_html_describes_the_device_without_opening_it(fake, name, words):
    markup = Device(name)._repr_html_()
    check_markup(markup)
    assert words in markup
    assert fake.ports == []


def test_html_of_a_broken_backend_shows_the_reason(fake, monkeypatch):
    monkeypatch.setattr(type(fake), "count", lambda _: 1 / 0)
    assert "ZeroDivisionError" in Device("fake")._repr_html_()
