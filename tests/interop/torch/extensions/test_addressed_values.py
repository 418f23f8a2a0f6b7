"""Values at addresses of emulated devices and of managed memory."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import forebay  # noqa: E402 -- as above
from forebay.interop.torch.extensions.addressed_values import (  # noqa: E402 -- as above
    allocate_managed,
    memory_of_address,
    values_at,
)


def test_values_are_those_of_the_tensor(emulated):
    tensor = torch.arange(6, dtype=torch.int32, device="cuda:1")
    found = values_at(tensor.data_ptr(), torch.int32, 2, 3)
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    found += 1
    assert tensor.tolist() == [1, 2, 3, 4, 5, 6]
    assert memory_of_address(tensor.data_ptr()) is memory_of_address(tensor[3:].data_ptr())


def test_address_may_be_within_a_tensor(emulated):
    tensor = torch.arange(10.0, device="cuda")
    assert values_at(tensor[4:].data_ptr(), torch.float32, 2).tolist() == [4, 5]


def test_no_elements_need_no_address(emulated):
    assert values_at(None, torch.float32, 0, 3).shape == (0, 3)
    assert memory_of_address(None) is None


@pytest.mark.parametrize(
    ("offset", "count"), [(0, 11), (40, 1), (-4, 1)], ids=["too many", "past the end", "before the start"]
)
def test_access_outside_of_a_tensor_is_refused(emulated, offset, count):
    tensor = torch.zeros(10, device="cuda")
    with pytest.raises(
        forebay.AcceleratorError, match=f"illegal memory access was encountered: {count * 4} bytes at 0x"
    ):
        values_at(tensor.data_ptr() + offset, torch.float32, count)


def test_null_is_refused(emulated):
    with pytest.raises(forebay.AcceleratorError, match="4 bytes at 0x0 are not memory of an emulated device"):
        values_at(None, torch.float32, 1)


def test_managed_memory_belongs_to_no_device(emulated):
    address = allocate_managed(4096)
    values_at(address, torch.float32, 1024)[:] = 2
    assert values_at(address + 4092, torch.float32, 1).tolist() == [2]
    assert memory_of_address(address) is None
    assert torch.cuda.memory_allocated() == 0
    with pytest.raises(forebay.AcceleratorError, match="illegal memory access"):
        values_at(address + 4096, torch.float32, 1)


def test_misaligned_address_is_refused(emulated):
    tensor = torch.zeros(10, device="cuda")
    with pytest.raises(forebay.AcceleratorError, match="misaligned address") as caught:
        values_at(tensor.data_ptr() + 2, torch.float32, 3)
    assert caught.value.error_code == 716


def test_managed_memory_is_found_while_another_thread_allocates(emulated):
    address, stop = allocate_managed(64), threading.Event()
    thread = threading.Thread(target=lambda: [allocate_managed(64) for _ in range(2000) if not stop.is_set()])
    thread.start()
    try:
        while thread.is_alive():
            assert values_at(address + 16, torch.float32, 4).tolist() == [0] * 4
    finally:
        stop.set()
        thread.join(60)


def test_too_much_managed_memory_is_one_clear_error(emulated):
    with pytest.raises(MemoryError, match=r"the host cannot map .* of managed memory"):
        allocate_managed(1 << 62)


def test_managed_memory_takes_no_room_until_it_is_written(emulated):
    assert allocate_managed(1 << 40) != 0
