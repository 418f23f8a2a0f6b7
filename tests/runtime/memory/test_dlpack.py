"""Capsules of DLPack: contents, ownership, and what hostile producers make."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from support.dlpack_capsules import Produced, consume

from forebay.runtime.memory._dlpack import ManagedTensor, device_of, export_memory
from forebay.testing.conformance.helpers import run_in_child


class Owner:
    """Memory, or whatever keeps it alive."""


def exported(owner, *, versioned, read_only=False, copied=False):
    flags = {"versioned": versioned, "read_only": read_only, "copied": copied}
    return export_memory(0x1000, (2, 3), (4, 1), (2, 32), (2, 1), owner, **flags)


@pytest.mark.parametrize("versioned", [False, True])
def test_export_has_the_contents_of_the_abi(versioned):
    fields, delete = consume(exported(Owner(), versioned=versioned, read_only=True, copied=True))
    assert fields == {
        "address": 0x1000,
        "device": (2, 1),
        "element": (2, 32, 1),
        "shape": [2, 3],
        "strides": [4, 1],
        "offset": 0,
        "version": (1, 0, 3) if versioned else None,
    }
    delete()


@pytest.mark.parametrize("versioned", [False, True])
def test_owner_lives_until_the_capsule_or_its_consumer_is_deleted(versioned):
    for how in ("dropped", "consumed", "consumed by another thread"):
        owner = Owner()
        reference = weakref.ref(owner)
        capsule = exported(owner, versioned=versioned)
        del owner
        gc.collect()
        assert reference() is not None, how
        if how != "dropped":
            _, delete = consume(capsule)
            del capsule
            gc.collect()
            assert reference() is not None, how
            if how == "consumed":
                delete()
            else:
                thread = threading.Thread(target=delete)
                thread.start()
                thread.join(20)
        else:
            del capsule
        assert reference() is None, how


@pytest.mark.parametrize("versioned", [False, True])
def test_import_consumes_the_capsule_and_frees_it_once(versioned):
    made = Produced(0x2000, (2, 3), (5, 1), offset=16, version=(1, 0) if versioned else None, flags=1, device=(2, 7))
    assert device_of(made.capsule) == (2, 7)
    managed = ManagedTensor(made.capsule)
    found = (managed.address, managed.shape, managed.strides, managed.element, managed.lanes, managed.device)
    assert found == (0x2010, (2, 3), (5, 1), (2, 32), 1, (2, 7))
    assert managed.read_only == versioned
    for take in (ManagedTensor, device_of):
        with pytest.raises(RuntimeError, match="consumed only once"):
            take(made.capsule)
    with pytest.raises(TypeError):
        managed.__init__(made.capsule)
    made.capsule = None
    assert made.deleted == 0
    del managed
    assert made.deleted == 1


def test_import_accepts_missing_strides_and_deleters_and_no_dimensions():
    scalar, line, empty = Produced(0x2000, (), (), deletes=False), Produced(0x2000, (2,)), Produced(0, (0,), offset=8)
    managed = ManagedTensor(scalar.capsule)
    assert (managed.address, managed.shape, managed.strides) == (0x2000, (), ())
    assert ManagedTensor(line.capsule).strides is None
    assert ManagedTensor(empty.capsule).address == 0


def test_bad_capsules_raise_and_are_freed_once():
    bad = {"ndim": {"ndim": -1}, "wide": {"ndim": 65}, "none": {"shape": None, "ndim": 2}}
    for name, options in bad.items():
        made = Produced(0x2000, **options)
        with pytest.raises(BufferError, match="dimensions"):
            ManagedTensor(made.capsule)
        gc.collect()
        assert made.deleted == 1, name
    newer = Produced(0x2000, version=(2, 0))
    for take in (ManagedTensor, device_of):
        with pytest.raises(RuntimeError, match="unsupported DLPack capsule major version: 2"):
            take(newer.capsule)
    assert newer.deleted == 0  # it stays with the producer's capsule
    minor = Produced(0x2000, version=(1, 9))
    assert ManagedTensor(minor.capsule).shape == (4,)
    for other in (None, 7, object(), np.ones(3)):
        with pytest.raises(RuntimeError, match="received an invalid capsule"):
            ManagedTensor(other)


def test_numpy_reads_an_export():
    memory = np.arange(6, dtype=np.float32)
    address = memory.__array_interface__["data"][0]

    class Exporter:
        def __dlpack__(self, **_):
            return export_memory(
                address, (3, 2), (2, 1), (2, 32), (1, 0), memory, versioned=False, read_only=False, copied=False
            )

        def __dlpack_device__(self):
            return 1, 0

    before = sys.getrefcount(memory)
    found = np.from_dlpack(Exporter())
    assert found.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert sys.getrefcount(memory) == before + 1
    del found
    assert sys.getrefcount(memory) == before


def test_import_is_not_freed_in_a_forked_child():
    made = Produced(0x2000)
    kept = [ManagedTensor(made.capsule)]

    def check():
        kept.clear()
        assert made.deleted == 0

    assert run_in_child(check) == ""
    kept.clear()
    assert made.deleted == 1


def test_capsules_and_consumers_may_outlive_the_interpreter():
    program = '''
import ctypes, sys
from ctypes import c_void_p
from support.dlpack_capsules import Produced
from forebay.runtime.memory._dlpack import ManagedTensor, export_memory

others = {}  # no globals of this program, which the garbage collector does not find through a capsule
exec("""class Owner:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print("freed", self.name)
""", others)

def export(name):
    owner = others["Owner"](name)
    return export_memory(1, (), (), (2, 32), (2, 0), owner, versioned=True, read_only=False, copied=False)

dropped, cycle = export("dropped"), []
cycle += [cycle, export("cycle")]
sys.modules["kept"] = export("module")
made = Produced(0x2000)
imported = ManagedTensor(made.capsule)

# The consumer calls the deleter after the interpreter has ended, as a static object of a library does.
capsule = export("late")
ctypes.pythonapi.PyCapsule_GetPointer.restype = c_void_p
pointer = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), b"dltensor_versioned")
deleter = c_void_p.from_address(pointer + 16).value
ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor_versioned")
libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = [c_void_p, c_void_p, c_void_p]
libc.__cxa_atexit(deleter, pointer, None)
'''
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["freed cycle", "freed dropped", "freed module"]
