"""Sparse matrices of blocks: what they may be made of, and their products against NumPy's dense ones."""

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
from forebay.runtime.tensors import bsr as computing

KINDS = ("float32", "float64", "float16", "bfloat16", "int32", "int64")


@pytest.fixture
def emulated():
    with forebay.emulate("cuda", count=2, memory=64 << 20):
        yield


@pytest.fixture(params=["scipy", "numpy"])
def way(request, monkeypatch):
    """Of computing; SciPy's tests are left out where it is not installed."""
    if request.param == "scipy":
        pytest.importorskip("scipy", reason="the extra sparse is not installed")
        assert computing._product() is not computing.product_by_numpy
    else:
        monkeypatch.setattr(computing, "_product", lambda: computing.product_by_numpy)


def matrix(rng, rows, columns, block, kind="float32", batch=(), share=0.5, device="cuda:0"):
    """A BSR tensor of small whole numbers, exact in every dtype; each batch has as many blocks."""
    dtype = forebay.dtypes.as_dtype(kind)
    blocks = int(rows * columns * share)
    crow, col = np.zeros((*batch, rows + 1), "i8"), np.zeros((*batch, blocks), "i8")
    for at in np.ndindex(batch):
        places = np.sort(rng.choice(rows * columns, blocks, replace=False))
        crow[at][1:] = np.cumsum(np.bincount(places // columns, minlength=rows))
        col[at] = places % columns
    values = rng.integers(-2, 3, (*batch, blocks, *block)).astype(dtype)
    shape = (*batch, rows * block[0], columns * block[1])
    return BsrTensor(*(forebay.tensor(part, device=device) for part in (crow, col, values)), shape=shape)


def dense_of(rng, *shape, kind="float32", device="cuda:0"):
    return forebay.tensor(rng.integers(-2, 3, shape).astype(forebay.dtypes.as_dtype(kind)), device=device)


def as_numbers(array):
    return np.array(array.tolist(), "f8").reshape(array.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_the_dense_matrices(emulated, way, kind):
    rng = np.random.default_rng(1)
    bsr, dense = matrix(rng, 3, 4, (2, 3), kind), dense_of(rng, 12, 5, kind=kind)
    found = bsr_dense_mm(bsr, dense)
    assert (found.dtype, found.device) == (dense.dtype, dense.device)
    np.testing.assert_array_equal(as_numbers(found), bsr.numpy().astype("f8") @ as_numbers(dense))


shapes = st.integers(0, 4)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), rows=shapes, columns=shapes, width=shapes, high=st.integers(1, 3), wide=st.integers(1, 3))
def test_any_shape_by_either_way(data, rows, columns, width, high, wide):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    share = data.draw(st.sampled_from([0, 0.3, 1]))
    batch, others = data.draw(st.sampled_from([((), ()), ((), (2,)), ((2,), ()), ((2, 1), (3,)), ((2,), (2,))]))
    by = data.draw(st.sampled_from([computing.product_by_numpy, computing._product()]))
    alpha, beta = data.draw(st.sampled_from([(1, 0), (0, 1), (2, -1), (0, 0)]))
    with forebay.emulate("cuda", memory=64 << 20), pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "_product", lambda: by)
        bsr, dense = (
            matrix(rng, rows, columns, (high, wide), batch=batch, share=share),
            dense_of(rng, *others, columns * wide, width),
        )
        expected = bsr.numpy() @ as_numbers(dense)
        before = dense_of(rng, rows * high, width)
        found = bsr_dense_addmm(before, bsr, dense, beta=beta, alpha=alpha)
        assert found.shape == expected.shape
        np.testing.assert_array_equal(
            as_numbers(found),
            beta * as_numbers(before) + alpha * expected,
        )


def test_small_floats_are_added_up_as_larger_ones(emulated, way):
    ones = forebay.full((1, 1, 4096), 1.0, dtype="float16", device="cuda:0")
    crow, col = (forebay.tensor(each, device="cuda:0") for each in ([0, 1], [0]))
    dense = forebay.full((4096, 1), 1.0, dtype="float16", device="cuda:0")
    dense[0] = 1e-3  # lost where 4095 is added to it in float16
    found = bsr_dense_mm(BsrTensor(crow, col, ones, (1, 4096)), dense)
    assert found.tolist() == [[4096.0]]


def test_a_factor_of_zero_hides_what_is_no_number(emulated, way):
    rng = np.random.default_rng(2)
    bsr, dense = matrix(rng, 2, 2, (2, 2)), dense_of(rng, 4, 3)
    nothing = forebay.full((4, 3), float("nan"), device="cuda:0")
    expected = as_numbers(bsr_dense_mm(bsr, dense))
    np.testing.assert_array_equal(as_numbers(bsr_dense_addmm(nothing, bsr, dense, beta=0)), expected)
    ones = forebay.full((4, 3), 1.0, device="cuda:0")
    assert set(as_numbers(bsr_dense_addmm(ones, bsr, nothing, alpha=0)).flat) == {1.0}


@pytest.mark.parametrize("alias", ["input", "dense"])
def test_the_result_may_be_where_an_argument_is(emulated, way, alias):
    rng = np.random.default_rng(3)
    bsr, dense, before = matrix(rng, 2, 2, (2, 2)), dense_of(rng, 4, 4), dense_of(rng, 4, 4)
    expected = as_numbers(before) + bsr.numpy() @ as_numbers(dense)
    out = before if alias == "input" else dense
    assert bsr_dense_addmm(before, bsr, dense, out=out) is out
    np.testing.assert_array_equal(as_numbers(out), expected)


def test_strided_and_broadcast_arguments(emulated, way):
    rng = np.random.default_rng(4)
    bsr, dense, row = matrix(rng, 2, 2, (2, 2)), dense_of(rng, 3, 4).transpose(0, 1), dense_of(rng, 3)
    out = forebay.zeros(3, 4, device="cuda:0").transpose(0, 1)
    bsr_dense_addmm(row, bsr, dense, out=out)
    np.testing.assert_array_equal(as_numbers(out), as_numbers(row) + bsr.numpy() @ as_numbers(dense))


def test_it_is_queued_on_the_current_stream_and_the_host_goes_on(emulated, way):
    rng = np.random.default_rng(5)
    bsr, dense = matrix(rng, 2, 2, (2, 2)), dense_of(rng, 4, 3)
    expected = bsr.numpy() @ as_numbers(dense)
    stream, may = forebay.Stream("cuda:0"), threading.Event()
    stream.queue.call(lambda: may.wait(30))
    with stream:
        found = bsr_dense_mm(bsr, dense)
        assert not stream.query()
        may.set()
        np.testing.assert_array_equal(as_numbers(found), expected)


def test_indices_that_are_none_fail_in_the_queue_and_when_asked(emulated):
    crow, values = forebay.tensor([0, 1], device="cuda:0"), forebay.zeros(1, 2, 2, device="cuda:0")
    bsr = BsrTensor(crow, forebay.tensor([7], device="cuda:0"), values, (2, 4))
    with pytest.raises(ValueError, match="col_indices are below 2"):
        bsr.check()
    falling = BsrTensor(
        forebay.tensor([0, 3, 1], device="cuda:0"), forebay.tensor([0], device="cuda:0"), values, (4, 4)
    )
    with pytest.raises(ValueError, match="crow_indices rise"):
        falling.check()
    bsr_dense_mm(bsr, forebay.zeros(4, 1, device="cuda:0"))
    with pytest.raises(forebay.DeviceError, match="col_indices are below 2"):
        forebay.synchronize("cuda:0")


def parts(crow=(0, 1, 2), col=(0, 1), values=(2, 2, 2), shape=(4, 4), kind="int64"):
    return (np.array(crow, kind), np.array(col, kind), np.zeros(values, "f4"), shape)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (parts(kind="float32"), "int32 or int64"),
        (parts(shape=(4,)), "not the shape of a matrix"),
        (parts(shape=(2, 4, 4)), "indices have 2 dimensions"),
        (parts(shape=(5, 4)), "not made of blocks"),
        (parts(crow=(0, 2)), "2 rows of blocks have 3 crow_indices, not 2"),
        (parts(col=(0,)), "one column index for each block"),
        (parts(values=(2, 0, 2)), "no elements"),
        (parts(values=(2, 2)), "values 3"),
    ],
    ids=["dtype", "shape", "no batch", "blocks", "rows", "columns", "empty blocks", "no blocks"],
)  # fmt: skip
def test_a_tensor_of_parts_that_do_not_fit_is_none(made, says):
    *arrays, shape = made
    with pytest.raises(ValueError, match=says):
        BsrTensor(*(forebay.tensor(each, device="host:0") for each in arrays), shape=shape)


def test_parts_of_two_devices_are_no_tensor(emulated):
    crow, col, values, shape = parts()
    with pytest.raises(ValueError, match="on one device"):
        BsrTensor(
            *(forebay.tensor(each, device="host:0") for each in (crow, col)),
            forebay.tensor(values, device="cuda:0"),
            shape,
        )


def test_products_that_are_refused(emulated):
    rng = np.random.default_rng(6)
    bsr, dense = matrix(rng, 2, 2, (2, 2)), dense_of(rng, 4, 3)
    refused = [
        ((dense, dense), {}, "only BSR sparse format"),
        ((bsr, dense_of(rng, 4, 3, device="cuda:1")), {}, "same GPU device"),
        ((bsr, dense_of(rng, 4, 3, kind="float64")), {}, "of the same dtype"),
        ((bsr, dense_of(rng, 4)), {}, "at least 2D, but got lhs.dim"),
        ((bsr, dense_of(rng, 5, 3)), {}, "which is not equal to rhs.shape"),
        ((matrix(rng, 2, 2, (2, 2), batch=(2,)), dense_of(rng, 3, 4, 3)), {}, "not broadcastable"),
        ((bsr, dense), {"out": dense_of(rng, 3, 3)}, "`out` argument has wrong shape"),
        ((bsr, dense), {"out": dense_of(rng, 4, 3, kind="int64")}, "`out` is unlike dense"),
    ]
    for arguments, named, says in refused:
        with pytest.raises(ValueError, match=says):
            bsr_dense_mm(*arguments, **named)
    with pytest.raises(ValueError, match="does not broadcast"):
        bsr_dense_addmm(dense_of(rng, 2, 3), bsr, dense)
    with pytest.raises(ValueError, match="unlike dense"):
        bsr_dense_addmm(dense_of(rng, 4, 3, kind="int64"), bsr, dense)


def test_scipys_matrices_and_ours_are_the_same(emulated):
    scipy = pytest.importorskip("scipy.sparse", reason="the extra sparse is not installed")
    rng = np.random.default_rng(7)
    bsr = matrix(rng, 3, 2, (2, 3), "float16")
    theirs = bsr.to_scipy()
    assert theirs.dtype == np.float32
    np.testing.assert_array_equal(theirs.toarray(), bsr.numpy())
    again = BsrTensor.from_scipy(theirs, "cuda:1")
    assert again.device == forebay.Device("cuda:1")
    np.testing.assert_array_equal(again.numpy(), theirs.toarray())
    assert BsrTensor.from_scipy(scipy.csr_matrix(np.eye(4)), "cuda:0").shape == (4, 4)
    with pytest.raises(ValueError, match="no batches"):
        matrix(rng, 1, 1, (1, 1), batch=(2,)).to_scipy()


@pytest.fixture
def unregistered(monkeypatch):
    monkeypatch.setattr(sparse, "operations", {})


def test_the_first_use_registers_the_operations(unregistered):
    with forebay.emulate("cuda"):
        assert sparse.operations == {}
        forebay.cuda.init()
        assert sorted(sparse.operations) == ["_triton_bsr_dense_addmm_out", "_triton_bsr_dense_mm_out"]
        known = sparse.operations["_triton_bsr_dense_mm_out"]
        forebay.cuda._register_triton_kernels()
        assert sparse.operations["_triton_bsr_dense_mm_out"] is known
    assert known.schema == "_triton_bsr_dense_mm_out(Tensor bsr, Tensor dense, *, Tensor(a!) out) -> Tensor(a!)"
    assert known.dispatch_key == "SparseCsrCUDA"


def test_an_operation_computes_and_remembers_that_it_did(emulated, unregistered):
    forebay.cuda.init()
    rng = np.random.default_rng(8)
    bsr, dense, out = matrix(rng, 2, 2, (2, 2)), dense_of(rng, 4, 3), forebay.zeros(4, 3, device="cuda:0")
    operation = sparse.operations["_triton_bsr_dense_addmm_out"]
    assert not operation.implementation.kernel_invoked
    assert operation(out, bsr, dense, beta=0, alpha=2, out=out) is out
    assert operation.implementation.kernel_invoked
    np.testing.assert_array_equal(as_numbers(out), 2 * bsr.numpy() @ as_numbers(dense))


def test_a_kernel_that_fails_was_not_invoked():
    wrapped = sparse._WrappedTritonKernel(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        wrapped()
    assert not wrapped.kernel_invoked


def test_on_a_real_device_tritons_kernels_get_the_same_memory(monkeypatch, unregistered, as_if_real):
    calls = []
    stand_ins = {
        name: types.ModuleType(name) for name in ("triton", "torch", "torch.sparse", "torch.sparse._triton_ops")
    }
    stand_ins["triton"].__spec__ = object()
    stand_ins["torch"].from_dlpack = lambda each: ("dense", each)
    stand_ins["torch"].sparse_bsr_tensor = lambda *each, size: ("bsr", *each, size)
    stand_ins["torch.sparse._triton_ops"].bsr_dense_mm = lambda *each, **named: calls.append((each, named))
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    rng = np.random.default_rng(9)
    with forebay.emulate("cuda"):
        forebay.cuda.init()
        bsr, dense, out = matrix(rng, 2, 2, (2, 2)), dense_of(rng, 4, 3), forebay.zeros(4, 3, device="cuda:0")
        assert sparse.operations["_triton_bsr_dense_mm_out"](bsr, dense, out=out) is out
        ((arguments, named),) = calls
        assert arguments[0] == ("bsr", *(("dense", part) for part in bsr.parts()), (4, 4))
        assert arguments[1] == ("dense", dense)
        assert named == {"out": ("dense", out), "skip_checks": True}
