"""Memory statistics of loops that create, fill, convert and drop tensors while their work is queued."""

from support.on_oracle import outcome

COUNT = 1 << 20  # elements: 4 MiB of float32


def _peaks(cuda, work, rounds=50):
    """Return the peak of allocated memory that the work adds, the reserved peak, and what stays allocated."""
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    for _ in range(rounds):
        work()
    peaks = [cuda.max_memory_allocated() - before, cuda.max_memory_reserved(), cuda.memory_allocated() - before]
    cuda.synchronize()
    return [*peaks, cuda.max_memory_allocated() - before]


def _work(torch_like):
    source = torch_like.empty(COUNT, dtype=torch_like.float64, device="cuda")
    array = torch_like.empty(COUNT)

    def empty():
        return torch_like.empty(COUNT, device="cuda")

    return {
        "full": lambda: torch_like.full((COUNT,), 1.0, device="cuda"),
        "zeros": lambda: torch_like.zeros(COUNT, device="cuda"),
        "ones": lambda: torch_like.ones(COUNT, device="cuda"),
        "fill_": lambda: empty().fill_(1.5),
        "fill_ of a slice": lambda: empty()[::2].fill_(1.5),
        "to": lambda: source.to(torch_like.float32),
        "converting copy_": lambda: empty().copy_(source),
        "strided copy_": lambda: empty()[::2].copy_(source[::2]),
        "transposed copy_": lambda: empty().view(1024, 1024).copy_(source.view(1024, 1024).transpose(0, 1)),
        "clone": source[::2].clone,
        "non-blocking copy_ from the host": lambda: empty().copy_(array, non_blocking=True),
        "non-blocking to": lambda: array.to("cuda", non_blocking=True),
    }


def queued_work_does_not_hold_memory(cuda, torch_like):
    return {name: _peaks(cuda, work) for name, work in _work(torch_like).items()}


def queued_work_does_not_hold_expandable_segments(cuda, torch_like):
    outcome(cuda, cuda.memory._set_allocator_settings, "expandable_segments:True")
    found = {name: _peaks(cuda, work) for name, work in _work(torch_like).items()}
    outcome(cuda, cuda.memory._set_allocator_settings, "expandable_segments:False")
    return found


def work_on_two_streams_reuses_the_memory_of_each(cuda, torch_like):
    one, other = cuda.Stream(), cuda.Stream()

    def work():
        with cuda.stream(one):
            first = torch_like.full((COUNT,), 1.0, device="cuda")
        with cuda.stream(other):
            second = torch_like.full((COUNT,), 2.0, device="cuda")
        del first, second

    return _peaks(cuda, work)


def dropped_tensors_of_a_capture_are_free(cuda, torch_like):
    """The memory of a tensor that is dropped returns to the graph's pool, during the capture and after it."""
    cuda.empty_cache()
    graph, found = cuda.CUDAGraph(), []
    with cuda.graph(graph):
        for number in range(3):
            made = torch_like.full((COUNT,), float(number), device="cuda")
            converted = made.to(torch_like.float64)
            found.append([cuda.memory_allocated(), cuda.memory_reserved()])
            del made, converted
        kept = torch_like.full((COUNT,), 5.0, device="cuda")
    found.append([cuda.memory_allocated(), cuda.memory_reserved()])
    graph.replay()
    del kept
    found.append([cuda.memory_allocated(), cuda.memory_reserved()])
    graph.reset()
    found.append([cuda.memory_allocated(), cuda.memory_reserved()])
    cuda.empty_cache()
    found.append([cuda.memory_allocated(), cuda.memory_reserved()])
    return found
