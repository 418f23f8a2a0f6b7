"""BSR tensors: validation of their parts, and their products compared with NumPy's dense products."""

from __future__ import annotations

import sys
import threading
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forebay
import forebay.cuda
from forebay.cuda import sparse
from forebay.cuda.sparse import BsrTensor, bsr_dense_addmm, bsr_dense_mm
from forebay.runtime.tensors import bsr as bsr_module

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")


@pytest.fixture
def emulated():
    with forebay.emulate("cuda", count=2, memory=64 << 20):
        yield


@pytest.fixture(params=["scipy", "numpy"])
def implementation(request, monkeypatch):
    """Select the implementation of products; skip SciPy's if it is not installed."""
    if request.param == "scipy":
        pytest.importorskip("scipy", reason="the extra sparse is not installed")
        assert bsr_module._product() is not bsr_module.product_by_numpy
    else:
        monkeypatch.setattr(bsr_module, "_product", lambda: bsr_module.product_by_numpy)


def random_bsr(rng, rows, columns, block, dtype="float32", batch=(), share=0.5, device="cuda:0"):
    """Return a random BSR tensor of small integers, exact in every dtype; all batches have equally many blocks."""
    dtype = forebay._base.dtypes.as_dtype(dtype)
    blocks = int(rows * columns * share)
    crow, col = np.zeros((*batch, rows + 1), "i8"), np.zeros((*batch, blocks), "i8")
    for at in np.ndindex(batch):
        places = np.sort(rng.choice(rows * columns, blocks, replace=False))
        crow[at][1:] = np.cumsum(np.bincount(places // columns, minlength=rows))
        col[at] = places % columns
    values = rng.integers(-2, 3, (*batch, blocks, *block)).astype(dtype)
    shape = (*batch, rows * block[0], columns * block[1])
    return BsrTensor(*(forebay.tensor(part, device=device) for part in (crow, col, values)), shape=shape)


def random_dense(rng, *shape, dtype="float32", device="cuda:0"):
    return forebay.tensor(rng.integers(-2, 3, shape).astype(forebay._base.dtypes.as_dtype(dtype)), device=device)


def to_float64(array):
    return np.array(array.tolist(), "f8").reshape(array.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_product_equals_dense_product(emulated, implementation, dtype):
    rng = np.random.default_rng(1)
    bsr, dense = random_bsr(rng, 3, 4, (2, 3), dtype), random_dense(rng, 12, 5, dtype=dtype)
    found = bsr_dense_mm(bsr, dense)
    assert (found.dtype, found.device) == (dense.dtype, dense.device)
    np.testing.assert_array_equal(to_float64(found), bsr.numpy().astype("f8") @ to_float64(dense))


shapes = st.integers(0, 4)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), rows=shapes, columns=shapes, width=shapes, high=st.integers(1, 3), wide=st.integers(1, 3))
def test_product_of_any_shape(data, rows, columns, width, high, wide):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    share = data.draw(st.sampled_from([0, 0.3, 1]))
    batch, others = data.draw(st.sampled_from([((), ()), ((), (2,)), ((2,), ()), ((2, 1), (3,)), ((2,), (2,))]))
    by = data.draw(st.sampled_from([bsr_module.product_by_numpy, bsr_module._product()]))
    alpha, beta = data.draw(st.sampled_from([(1, 0), (0, 1), (2, -1), (0, 0)]))
    with forebay.emulate("cuda", memory=64 << 20), pytest.MonkeyPatch.context() as patch:
        patch.setattr(bsr_module, "_product", lambda: by)
        bsr, dense = (
            random_bsr(rng, rows, columns, (high, wide), batch=batch, share=share),
            random_dense(rng, *others, columns * wide, width),
        )
        expected = bsr.numpy() @ to_float64(dense)
        before = random_dense(rng, rows * high, width)
        found = bsr_dense_addmm(before, bsr, dense, beta=beta, alpha=alpha)
        assert found.shape == expected.shape
        np.testing.assert_array_equal(
            to_float64(found),
            beta * to_float64(before) + alpha * expected,
        )


def test_float16_is_accumulated_in_float32(emulated, implementation):
    ones = forebay.full((1, 1, 4096), 1.0, dtype="float16", device="cuda:0")
    crow, col = (forebay.tensor(each, device="cuda:0") for each in ([0, 1], [0]))
    dense = forebay.full((4096, 1), 1.0, dtype="float16", device="cuda:0")
    dense[0] = 1e-3  # lost when 4095 is added in float16
    found = bsr_dense_mm(BsrTensor(crow, col, ones, (1, 4096)), dense)
    assert found.tolist() == [[4096.0]]


def test_zero_factor_ignores_nan(emulated, implementation):
    rng = np.random.default_rng(2)
    bsr, dense = random_bsr(rng, 2, 2, (2, 2)), random_dense(rng, 4, 3)
    nans = forebay.full((4, 3), float("nan"), device="cuda:0")
    expected = to_float64(bsr_dense_mm(bsr, dense))
    np.testing.assert_array_equal(to_float64(bsr_dense_addmm(nans, bsr, dense, beta=0)), expected)
    ones = forebay.full((4, 3), 1.0, device="cuda:0")
    assert set(to_float64(bsr_dense_addmm(ones, bsr, nans, alpha=0)).flat) == {1.0}


@pytest.mark.parametrize("alias", ["input", "dense"])
def test_out_can_be_an_argument(emulated, implementation, alias):
    rng = np.random.default_rng(3)
    bsr, dense, before = random_bsr(rng, 2, 2, (2, 2)), random_dense(rng, 4, 4), random_dense(rng, 4, 4)
    expected = to_float64(before) + bsr.numpy() @ to_float64(dense)
    out = before if alias == "input" else dense
    assert bsr_dense_addmm(before, bsr, dense, out=out) is out
    np.testing.assert_array_equal(to_float64(out), expected)


def test_strided_and_broadcast_arguments(emulated, implementation):
    rng = np.random.default_rng(4)
    bsr, dense, row = random_bsr(rng, 2, 2, (2, 2)), random_dense(rng, 3, 4).transpose(0, 1), random_dense(rng, 3)
    out = forebay.zeros(3, 4, device="cuda:0").transpose(0, 1)
    bsr_dense_addmm(row, bsr, dense, out=out)
    np.testing.assert_array_equal(to_float64(out), to_float64(row) + bsr.numpy() @ to_float64(dense))


def test_product_is_queued_on_current_stream(emulated, implementation):
    rng = np.random.default_rng(5)
    bsr, dense = random_bsr(rng, 2, 2, (2, 2)), random_dense(rng, 4, 3)
    expected = bsr.numpy() @ to_float64(dense)
    stream, gate = forebay.Stream("cuda:0"), threading.Event()
    stream.queue.call(lambda: gate.wait(30))
    with stream:
        try:
            found = bsr_dense_mm(bsr, dense)
            assert not stream.query()
        finally:
            gate.set()
        np.testing.assert_array_equal(to_float64(found), expected)


def test_invalid_indices_fail_in_queue_and_in_check(emulated):
    crow, values = forebay.tensor([0, 1], device="cuda:0"), forebay.zeros(1, 2, 2, device="cuda:0")
    bsr = BsrTensor(crow, forebay.tensor([7], device="cuda:0"), values, (2, 4))
    with pytest.raises(ValueError, match=r"col_indices must be in \[0, 2\)"):
        bsr.check()
    falling = BsrTensor(
        forebay.tensor([0, 3, 1], device="cuda:0"), forebay.tensor([0], device="cuda:0"), values, (4, 4)
    )
    with pytest.raises(ValueError, match="crow_indices must increase"):
        falling.check()
    bsr_dense_mm(bsr, forebay.zeros(4, 1, device="cuda:0"))
    with pytest.raises(forebay.DeviceError, match=r"col_indices must be in \[0, 2\)"):
        forebay.synchronize("cuda:0")


def parts(crow=(0, 1, 2), col=(0, 1), values=(2, 2, 2), shape=(4, 4), dtype="int64"):
    return (np.array(crow, dtype), np.array(col, dtype), np.zeros(values, "f4"), shape)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (parts(dtype="float32"), "int32 or int64"),
        (parts(shape=(4,)), "not a valid matrix shape"),
        (parts(shape=(2, 4, 4)), "indices must have 2 dimensions"),
        (parts(shape=(5, 4)), "not divisible by block size"),
        (parts(crow=(0, 2)), "2 block rows need 3 crow_indices, not 2"),
        (parts(col=(0,)), "one element per block"),
        (parts(values=(2, 0, 2)), "is empty"),
        (parts(values=(2, 2)), "values 3"),
    ],
    ids=["dtype", "shape", "no batch", "blocks", "rows", "columns", "empty blocks", "no blocks"],
)  # fmt: skip
def test_mismatching_parts_raise(given, message):
    *arrays, shape = given
    with pytest.raises(ValueError, match=message):
        BsrTensor(*(forebay.tensor(each, device="cpu") for each in arrays), shape=shape)


def test_parts_on_two_devices_raise(emulated):
    crow, col, values, shape = parts()
    with pytest.raises(ValueError, match="on one device"):
        BsrTensor(
            *(forebay.tensor(each, device="cpu") for each in (crow, col)),
            forebay.tensor(values, device="cuda:0"),
            shape,
        )


def test_invalid_products_raise(emulated):
    rng = np.random.default_rng(6)
    bsr, dense = random_bsr(rng, 2, 2, (2, 2)), random_dense(rng, 4, 3)
    invalid = [
        ((dense, dense), {}, "only BSR sparse format"),
        ((bsr, random_dense(rng, 4, 3, device="cuda:1")), {}, "same GPU device"),
        ((bsr, random_dense(rng, 4, 3, dtype="float64")), {}, "of the same dtype"),
        ((bsr, random_dense(rng, 4)), {}, "at least 2D, but got lhs.dim"),
        ((bsr, random_dense(rng, 5, 3)), {}, "which is not equal to rhs.shape"),
        ((random_bsr(rng, 2, 2, (2, 2), batch=(2,)), random_dense(rng, 3, 4, 3)), {}, "not broadcastable"),
        ((bsr, dense), {"out": random_dense(rng, 3, 3)}, "`out` argument has wrong shape"),
        ((bsr, dense), {"out": random_dense(rng, 4, 3, dtype="int64")}, "`out` and dense differ"),
    ]
    for arguments, keywords, message in invalid:
        with pytest.raises(ValueError, match=message):
            bsr_dense_mm(*arguments, **keywords)
    with pytest.raises(ValueError, match="does not broadcast"):
        bsr_dense_addmm(random_dense(rng, 2, 3), bsr, dense)
    with pytest.raises(ValueError, match="input and dense differ"):
        bsr_dense_addmm(random_dense(rng, 4, 3, dtype="int64"), bsr, dense)


def test_conversion_to_and_from_scipy(emulated):
    scipy = pytest.importorskip("scipy.sparse", reason="the extra sparse is not installed")
    rng = np.random.default_rng(7)
    bsr = random_bsr(rng, 3, 2, (2, 3), "float16")
    scipy_bsr = bsr.to_scipy()
    assert scipy_bsr.dtype == np.float32
    np.testing.assert_array_equal(scipy_bsr.toarray(), bsr.numpy())
    converted = BsrTensor.from_scipy(scipy_bsr, "cuda:1")
    assert converted.device == forebay.device("cuda:1")
    np.testing.assert_array_equal(converted.numpy(), scipy_bsr.toarray())
    assert BsrTensor.from_scipy(scipy.csr_matrix(np.eye(4)), "cuda:0").shape == (4, 4)
    with pytest.raises(ValueError, match="does not support batches"):
        random_bsr(rng, 1, 1, (1, 1), batch=(2,)).to_scipy()


@pytest.fixture
def no_operations(monkeypatch):
    monkeypatch.setattr(sparse, "operations", {})


def test_first_use_registers_operations(no_operations):
    with forebay.emulate("cuda"):
        assert sparse.operations == {}
        forebay.cuda.init()
        assert sorted(sparse.operations) == ["_triton_bsr_dense_addmm_out", "_triton_bsr_dense_mm_out"]
        known = sparse.operations["_triton_bsr_dense_mm_out"]
        forebay.cuda._register_triton_kernels()
        assert sparse.operations["_triton_bsr_dense_mm_out"] is known
    assert known.schema == "_triton_bsr_dense_mm_out(Tensor bsr, Tensor dense, *, Tensor(a!) out) -> Tensor(a!)"
    assert known.dispatch_key == "SparseCsrCUDA"


def test_operation_computes_and_sets_kernel_invoked(emulated, no_operations):
    forebay.cuda.init()
    rng = np.random.default_rng(8)
    bsr, dense, out = random_bsr(rng, 2, 2, (2, 2)), random_dense(rng, 4, 3), forebay.zeros(4, 3, device="cuda:0")
    operation = sparse.operations["_triton_bsr_dense_addmm_out"]
    assert not operation.implementation.kernel_invoked
    assert operation(out, bsr, dense, beta=0, alpha=2, out=out) is out
    assert operation.implementation.kernel_invoked
    np.testing.assert_array_equal(to_float64(out), 2 * bsr.numpy() @ to_float64(dense))


def test_failed_kernel_is_not_marked_invoked():
    wrapped = sparse._WrappedTritonKernel(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        wrapped()
    assert not wrapped.kernel_invoked


def test_real_device_passes_shared_memory_to_triton_kernels(monkeypatch, no_operations, as_if_real):
    calls = []
    fake_modules = {
        name: types.ModuleType(name) for name in ("triton", "torch", "torch.sparse", "torch.sparse._triton_ops")
    }
    fake_modules["triton"].__spec__ = object()
    fake_modules["torch"].from_dlpack = lambda each: ("dense", each)
    fake_modules["torch"].sparse_bsr_tensor = lambda *each, size: ("bsr", *each, size)
    fake_modules["torch.sparse._triton_ops"].bsr_dense_mm = lambda *each, **named: calls.append((each, named))
    for name, module in fake_modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    rng = np.random.default_rng(9)
    with forebay.emulate("cuda"):
        forebay.cuda.init()
        bsr, dense, out = random_bsr(rng, 2, 2, (2, 2)), random_dense(rng, 4, 3), forebay.zeros(4, 3, device="cuda:0")
        assert sparse.operations["_triton_bsr_dense_mm_out"](bsr, dense, out=out) is out
        ((arguments, named),) = calls
        assert arguments[0] == ("bsr", *(("dense", part) for part in bsr.parts()), (4, 4))
        assert arguments[1] == ("dense", dense)
        assert named == {"out": ("dense", out), "skip_checks": True}


def test_products_need_no_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    assert bsr_module._product.__wrapped__() is bsr_module.product_by_numpy


def test_number_of_blocks_is_that_of_each_matrix(emulated):
    bsr = random_bsr(np.random.default_rng(5), 3, 4, (2, 5), batch=(2, 2), share=0.25)
    assert (bsr.nnz, bsr.blocksize) == (3, (2, 5))
