# cython: language_level=3
"""Owners that PyTorch deletes with a storage, and tables of what they own; documented in _storage_owners.pyi.

Keys of the tables are integers that the owned object keeps: a removal creates no object, and cannot fail.
"""

cimport cython
from cpython.object cimport PyObject

cdef dict _by_storage = {}  # by the address of PyTorch's storage object on the emulated device
cdef dict _by_values = {}  # by that of the values' storage object
cdef dict _by_address = {}  # of the block
cdef object _on_allocation = None
cdef object _on_free = None
cdef dict _ended = {}  # by the address of the storage: memory that was in the tables when PyTorch was restored


@cython.final
@cython.auto_pickle(False)
cdef class EmulatedMemory:
    cdef readonly object values, block, opened, nbytes
    cdef public object known, assumed, record
    cdef public list freed
    cdef object storage_key, values_key, address  # integers, or None
    cdef PyObject* owner  # which refers to this, and clears it

    def __cinit__(self, values, block, opened, Py_ssize_t nbytes):
        self.values, self.block, self.opened, self.nbytes = values, block, opened, nbytes
        self.values_key = int(values._cdata)
        if block is not None:
            self.address = int(block.address)


@cython.final
@cython.no_gc  # refers to memory only, which does not refer to its owner
@cython.auto_pickle(False)
cdef class MemoryOwner:
    cdef EmulatedMemory memory

    def __cinit__(self, EmulatedMemory memory not None):
        if memory.owner is not NULL:
            raise ValueError("the memory has an owner already")
        memory.owner, self.memory = <PyObject*>self, memory
        if memory.block is not None:
            _by_values[memory.values_key] = memory
            _by_address[memory.address] = memory

    def __dealloc__(self):
        cdef EmulatedMemory memory = self.memory
        if memory is None:  # the creation has failed
            return
        memory.owner = NULL
        forget(_by_storage, memory.storage_key, memory)
        forget(_ended, memory.storage_key, memory)
        forget(_by_values, memory.values_key, memory)
        forget(_by_address, memory.address, memory)
        if memory.freed is not None:
            memory.freed.append(memory.record)
        if _on_free is not None and memory.address is not None:
            _on_free(memory.address)  # of a tool, beside which an interrupt may be lost

    def attach(self, storage_key):
        if self.memory.storage_key is not None:
            raise ValueError("the memory belongs to a storage already")
        self.memory.storage_key = storage_key = int(storage_key)
        _by_storage[storage_key] = self.memory


cdef int forget(dict table, key, EmulatedMemory memory) except -1:
    """Remove an entry, unless other memory has taken it."""
    if key is not None and table.get(key) is memory:
        del table[key]
    return 0


def memory_of_storage(storage_key): return _by_storage.get(storage_key)
def memory_of_values(values_key): return _by_values.get(values_key)
def memory_at(address): return _by_address.get(address)
def block_addresses(): return list(_by_address)


def end_all():
    _ended.update(_by_storage)
    _by_storage.clear()
    _by_values.clear()
    _by_address.clear()
    return list(_ended)


def has_ended(): return bool(_ended)
def ended_memory(storage_key): return _ended.get(storage_key)


cdef int exchange(swap, one, other) except -1:
    cdef EmulatedMemory first = _by_storage[one._cdata], second = _by_storage[other._cdata]
    if swap is not None:
        swap(one, other)  # the storages exchange their owners
    else:
        first.owner, second.owner = second.owner, first.owner
        (<MemoryOwner>first.owner).memory, (<MemoryOwner>second.owner).memory = first, second
    first.storage_key, second.storage_key = second.storage_key, first.storage_key
    _by_storage[first.storage_key] = first
    _by_storage[second.storage_key] = second
    return 0


def exchange_memory(swap, one, other):
    exchange(swap, one, other)


def replace_memory(swap, storage, empty, new, prepare):
    for each in (storage, empty, new):
        if each._cdata not in _by_storage:
            raise KeyError(each._cdata)
    prepare()
    exchange(swap, storage, empty)  # PyTorch exchanges equal sizes, or any size with none
    exchange(swap, storage, new)


def set_trace(on_allocation, on_free):
    global _on_allocation, _on_free
    _on_allocation, _on_free = on_allocation, on_free


def allocation_trace(): return _on_allocation
