"""forebay.mps on an emulated device: memory, host aliases, generator states, Metal functions."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import forebay
from forebay import mps, random

pytestmark = pytest.mark.usefixtures("apple")

ZEROS = np.zeros(44, np.uint8)


def test_device_is_available():
    assert (mps.is_available(), mps.device_count(), forebay.device_count("mps")) == (True, 1, 1)
    assert forebay.current_device() == forebay.device("mps", 0)
    assert not mps._is_in_bad_fork()


def test_device_is_removed_with_its_emulation(apple):
    forebay.zeros(3, device="mps")
    apple.stop()
    assert (mps.is_available(), mps.device_count()) == (False, 0)
    with pytest.raises(forebay.ForebayError, match=r"^Cannot execute deviceSynchronize\(\) without MPS backend.\n\w"):
        mps.synchronize()


def test_allocator_settings_ignore_ended_devices(apple):
    opened = forebay.zeros(3, device="mps").raw_storage.opened
    apple.stop()
    forebay.memory.set_allocator_settings("expandable_segments:False")
    assert opened.unusable


# ---- Memory


def test_queries_open_no_device():
    assert (mps.current_allocated_memory(), mps.driver_allocated_memory()) == (0, 0)
    assert mps.recommended_max_memory() == 96 << 30
    mps.synchronize()
    mps.empty_cache()
    mps.manual_seed(3)
    mps.get_rng_state()
    assert forebay.runtime.devices.open_device.open_device_indices("mps") == []


def test_current_and_driver_allocated_memory():
    """1000 floats are 4000 bytes, in a buffer of 4096 bytes, in a heap of 8 MiB."""
    tensor = forebay.zeros(1000, device="mps")
    assert (mps.current_allocated_memory(), mps.driver_allocated_memory()) == (4096, 8 << 20)
    assert forebay.memory.memory_allocated("mps") == 4096 > tensor.nbytes
    del tensor
    assert (mps.current_allocated_memory(), mps.driver_allocated_memory()) == (0, 8 << 20)
    mps.empty_cache()
    assert mps.driver_allocated_memory() == 0


@pytest.mark.parametrize(
    ("fraction", "error", "message"),
    [
        (1, TypeError, r"^Invalid type for fraction argument, must be `float`$"),
        (np.float32(0.5), TypeError, r"^Invalid type for fraction argument, must be `float`$"),
        (2.0000001, ValueError, r"^Invalid fraction value: 2.0000001. Allowed range: 0~2$"),
        (-0.5, ValueError, r"^Invalid fraction value: -0.5. Allowed range: 0~2$"),
        (float("nan"), RuntimeError, r"^invalid high watermark ratio nan$"),
    ],
)
def test_invalid_memory_fractions_are_rejected(fraction, error, message):
    with pytest.raises(error, match=message):
        mps.set_per_process_memory_fraction(fraction)
    forebay.zeros(1000, device="mps")


@pytest.mark.parametrize("fraction", [0.0, 2.0, 0.001])
def test_memory_fraction_allows_smaller_allocations(fraction):
    """A thousandth of 96 GiB is 98 MiB; 0 removes the limit."""
    mps.set_per_process_memory_fraction(fraction)
    assert forebay.zeros(1 << 20, device="mps").nbytes == 4 << 20


def test_memory_fraction_limits_allocations():
    mps.set_per_process_memory_fraction(1e-9)
    with pytest.raises(forebay.OutOfMemory, match=r"^MPS backend out of memory \(.*, max allowed: 103 bytes\)"):
        forebay.zeros(1000, device="mps")
    mps.set_per_process_memory_fraction(1.0)
    forebay.zeros(1000, device="mps")


def test_host_alias_shares_the_memory():
    tensor = forebay.full((4,), 2.0, device="mps")
    mps.synchronize()
    storage = mps._host_alias_storage(tensor.untyped_storage())
    assert (storage.device, storage.nbytes()) == (forebay.device("cpu"), 16)
    alias = mps._host_alias_storage(tensor)
    assert alias.data_ptr() == storage.data_ptr()
    assert (alias.device, alias.dtype, alias.nbytes) == (forebay.device("cpu"), np.uint8, 16)
    alias.numpy().view(np.float32)[1:] = 5
    assert tensor.tolist() == [2, 5, 5, 5]


def test_host_alias_keeps_the_memory_alive():
    alias = mps._host_alias_storage(forebay.zeros(1000, device="mps"))
    in_use = mps.current_allocated_memory()
    assert in_use >= 4000
    del alias
    assert mps.current_allocated_memory() < in_use
    assert mps._host_alias_storage(forebay.empty(0, device="mps")).nbytes == 0


def test_host_alias_rejects_other_memory(apple):
    with pytest.raises(forebay.ForebayError, match=r"^memory on cpu was not allocated by the MPS allocator$"):
        mps._host_alias_storage(forebay.zeros(3, device="cpu"))
    with pytest.raises(TypeError, match=r"^expected a tensor or its untyped storage, not ndarray$"):
        mps._host_alias_storage(np.zeros(3))
    ended = forebay.zeros(3, device="mps")
    apple.stop()
    with forebay.emulate("mps", profile="apple_m1", guard=True):
        with pytest.raises(forebay.WrongState, match="the emulation of mps:0 has ended"):
            mps._host_alias_storage(ended)
        with pytest.raises(forebay.Unsupported, match="guarded"):
            mps._host_alias_storage(forebay.zeros(3, device="mps"))


# ---- Generators


def test_generator_state_has_pytorchs_44_bytes():
    mps.manual_seed(0x1122334455667788)
    words = (1, 1, 1, 1, 1, 0x55667788, 0x11223344)
    assert struct.unpack("<7IQQ", mps.get_rng_state()) == (*words, 0x1122334455667788, 0)
    forebay.rand(5, device="mps")  # each thread uses one Philox counter: four words
    assert struct.unpack("<7IQQ", mps.get_rng_state()) == (*words, 0x1122334455667788, 1)


@pytest.mark.parametrize("draw", [forebay.rand, forebay.randn, forebay.randperm], ids=lambda draw: draw.__name__)
def test_generator_state_resumes_the_sequence(draw):
    """PyTorch had a bug here: pytorch#130613."""
    mps.manual_seed(7)
    draw(100, device="mps")
    state = mps.get_rng_state()
    first = draw(100, device="mps").tolist()
    assert draw(100, device="mps").tolist() != first
    mps.set_rng_state(state)
    assert draw(100, device="mps").tolist() == first
    mps.manual_seed(7)
    mps.set_rng_state(forebay.tensor(state, device="cpu"))  # a tensor is accepted too
    assert draw(100, device="mps").tolist() == first


def test_state_of_pytorchs_mps_graphs_is_accepted():
    """The counter for Apple's graphs may have any value."""
    state = struct.pack("<7IQQ", 1, 9, 8, 7, 6, 5, 0, 5, 3)
    mps.set_rng_state(np.frombuffer(state, np.uint8))
    assert (mps._get_default_mps_generator().initial_seed(), mps._get_default_mps_generator().get_offset()) == (5, 12)


def test_any_64_bit_offset_is_accepted():
    state = ZEROS.copy()
    state[36:] = 255
    mps.set_rng_state(state)
    assert forebay.rand(3, device="mps").shape == (3,)
    assert mps._get_default_mps_generator().get_offset() == 0  # wrapped around


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (ZEROS[:16], RuntimeError, "RNG state is wrong size"),
        (np.zeros(45, np.uint8), RuntimeError, "RNG state is wrong size"),
        (ZEROS[:0], RuntimeError, "RNG state is wrong size"),
        (np.zeros(44, np.int8), TypeError, "RNG state must be a torch.ByteTensor"),
        (np.zeros(11, np.float32), TypeError, "RNG state must be a torch.ByteTensor"),
        (bytes(44), TypeError, "expected a torch.ByteTensor, but got bytes"),
        (None, TypeError, "expected a torch.ByteTensor, but got NoneType"),
    ],
    ids=["CUDA's", "too long", "empty", "signed", "floats", "bytes", "None"],
)
def test_invalid_states_are_rejected(state, error, message):
    mps.manual_seed(7)
    with pytest.raises(error, match=f"^{message}$"):
        mps.set_rng_state(state)
    assert mps._get_default_mps_generator().initial_seed() == 7


def test_state_is_copied_and_may_be_strided():
    strided = np.repeat(ZEROS, 2)[::2]
    mps.set_rng_state(strided)
    strided[:] = 1
    assert mps.get_rng_state()[28:].tolist() == [0] * 16


def test_all_names_refer_to_one_generator(apple):
    generator = mps._get_default_mps_generator()
    assert mps._default_mps_generator is generator is random.default_generator("mps:0")
    mps.manual_seed(3)
    assert random.initial_seed("mps:0") == generator.initial_seed() == 3
    np.testing.assert_array_equal(random.get_rng_state("mps:0"), mps.get_rng_state("ignored"))
    own = forebay.Generator(device="mps").set_state(mps.get_rng_state())
    assert forebay.rand(4, device="mps", generator=own).tolist() == forebay.rand(4, device="mps").tolist()
    random.manual_seed_all(4, "mps")
    assert generator.initial_seed() == 4
    mps.seed()
    assert generator.initial_seed() not in {3, 4}
    apple.stop()
    assert mps._default_mps_generator is None


def test_other_kinds_keep_16_byte_states():
    assert random.get_rng_state("cpu").nbytes == 16
    with pytest.raises(RuntimeError, match=r"^RNG state is wrong size$"):
        random.set_rng_state(mps.get_rng_state(), "cpu")


def test_manual_seed_rejects_invalid_seeds():
    mps.manual_seed(1.9)
    assert random.initial_seed("mps:0") == 1
    for seed, error in (("x", ValueError), (None, TypeError), (1 << 64, ValueError)):
        with pytest.raises(error):
            mps.manual_seed(seed)
    assert random.initial_seed("mps:0") == 1


# ---- Metal functions


def test_shader_functions_are_unsupported(tmp_path):
    with pytest.raises(forebay.Unsupported, match=r"^forebay.mps.compile_shader is not supported: Metal is required"):
        mps.compile_shader("kernel void full() {}")
    for library in (b"MTLB", bytearray(8), "x.metallib", tmp_path):
        with pytest.raises(
            forebay.Unsupported, match=r"^forebay.mps.load_metallib is not supported: Metal is required"
        ):
            mps.load_metallib(library)


def test_shader_functions_reject_wrong_types():
    with pytest.raises(TypeError, match=r"^source must be a str, not int$"):
        mps.compile_shader(3)
    with pytest.raises(TypeError, match=r"^expected bytes or path, got NoneType$"):
        mps.load_metallib(None)


def test_missing_attribute_raises():
    with pytest.raises(AttributeError, match=r"^module 'forebay.mps' has no attribute 'nothing'$"):
        _ = mps.nothing


@pytest.mark.parametrize("usage", ["shared", "private"])
@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 63, 1 << 70])
def test_oversized_buffers_are_rejected(nbytes, usage):
    message = rf"^Invalid buffer size: {nbytes / (1 << 30):.2f} GB$"
    with pytest.raises(RuntimeError, match=message):
        forebay.allocate(nbytes, "mps")
    with pytest.raises(RuntimeError, match=message):
        forebay.allocate(nbytes, "mps", usage=usage)


@pytest.mark.parametrize("wrong", ["8", None, 1.5])
def test_allocation_size_must_be_an_int(wrong):
    for usage in ("", "shared"):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            forebay.allocate(wrong, "mps", usage=usage)


@pytest.mark.parametrize("wrong", [None, True, "1"])
def test_memory_fraction_must_be_a_number(wrong):
    with pytest.raises(TypeError, match="a high watermark is a number, a fraction of the recommended memory, not"):
        forebay.memory.set_per_process_memory_fraction(wrong, "mps")


def test_high_watermark_below_the_default_low_watermark_is_rejected(monkeypatch):
    """PyTorch's message contains a number that the user did not set; forebay adds the second line."""
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "0.7")
    message = r"^invalid low watermark ratio 1\.4\nPYTORCH_MPS_LOW_WATERMARK_RATIO may be 0 to 0\.7"
    with pytest.raises(RuntimeError, match=message):
        forebay.zeros(1, device="mps")


def test_device_of_one_byte_rejects_allocations(apple):
    apple.stop()
    with forebay.emulate("mps", memory=1):
        assert mps.recommended_max_memory() == 1
        with pytest.raises(RuntimeError, match="Invalid buffer size"):
            forebay.zeros(1, device="mps")
