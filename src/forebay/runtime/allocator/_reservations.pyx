# cython: language_level=3, autotestdict=False
"""Steps of an allocator that no signal handler or RecursionError can split; documented in _reservations.pyi.

See Note [Reservations are one step].
"""

from forebay.errors import DeviceError


cdef class PoolUser:
    cdef readonly object pool

    def __cinit__(self, pool):
        pool.users += 1
        self.pool = pool

    def __del__(self): self.end()

    def end(self):
        pool, self.pool = self.pool, None
        if pool is not None and pool.users:  # else the pools have ended
            pool.users -= 1


def reserve_and_adopt(pool, reserve, what, release, Py_ssize_t need, Py_ssize_t segment, queue, pool_number):
    address = reserve(what)
    try:
        block = pool.adopt_and_allocate(need, address, segment, queue, pool_number)
    except BaseException:
        if not pool.owns(address):
            release(address)
        raise
    pool.num_reserved += 1
    return block


def reserve_into(owner, reserve, nbytes):
    owner.address = reserve(nbytes)
    owner.freed = False


def free_into(list entries, owner, release):
    if not owner.freed:
        entries.append(release)
        owner.freed = True


def call_entry(list entries, entry):
    try:
        entries.remove(entry)
    except ValueError:  # another thread releases it
        return
    entry()


def evict_into(list entries, addresses, evict, stack, serial):
    for address in addresses:
        entry = (address, next(serial))
        if evict(address, stack):
            entries.append(entry)


def release_entry(owner, list entries, entry, release):
    try:
        entries.remove(entry)
    except ValueError:  # another thread releases it
        return False
    try:
        release(entry[0])
    except DeviceError:
        entries.append(entry)
        raise
    owner.num_released += 1
    return True
