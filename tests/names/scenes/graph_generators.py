"""CUDA graphs: generators whose state is shared, several generators in several graphs, and memory for their seeds."""

from __future__ import annotations

from support.on_oracle import outcome


def on_a_stream(cuda):
    return cuda.stream(cuda.Stream())


def blocks(cuda):
    stats = cuda.memory_stats()
    return [stats.get(f"{name}.all.current", 0) for name in ("active", "allocation", "active_bytes", "requested_bytes")]


def capture(cuda, graph, *draws):
    with on_a_stream(cuda):
        graph.capture_begin()
        for draw in draws:
            draw()
        graph.capture_end()


def shared_state(cuda, torch_like):
    one, other = torch_like.Generator("cuda"), torch_like.Generator("cuda")
    view, results = one.graphsafe_get_state(), []
    one.manual_seed(5)
    other.manual_seed(7)
    results.append([view is one, view.initial_seed(), str(view.device.type), view.get_offset()])
    results.append([one.graphsafe_set_state(other) is one, one.initial_seed(), view.initial_seed()])
    one.manual_seed(8)
    one.set_offset(12)
    results.append([other.initial_seed(), other.get_offset(), view.initial_seed(), view.get_offset()])
    torch_like.empty(10, device="cuda").uniform_(generator=other)
    results.append([one.get_offset(), view.get_offset()])
    copied = one.clone_state()
    one.manual_seed(9)
    one.graphsafe_set_state(view)
    return [*results, copied.initial_seed(), copied.get_offset(), one.initial_seed(), one.get_offset()]


def invalid_states(cuda, torch_like):
    generator = torch_like.Generator("cuda")
    wrong = (3, None, torch_like.zeros(16, dtype=torch_like.uint8), torch_like.Generator("cpu"))
    return [outcome(cuda, generator.graphsafe_set_state, each) for each in wrong]


def state_of_another_device(cuda, torch_like):
    generator, other = torch_like.Generator("cuda:0"), torch_like.Generator("cuda:1").manual_seed(3)
    return outcome(cuda, lambda: generator.graphsafe_set_state(other).initial_seed())


def states_in_a_capture(cuda, torch_like):
    """A capture draws from the state that its generator has at that moment, and a replay advances all of them."""
    generator, other = torch_like.Generator("cuda"), torch_like.Generator("cuda").manual_seed(4)
    cuda.init()
    graph, results = cuda.CUDAGraph(), []
    default = cuda.default_generators[0]
    before, numbers = generator.graphsafe_get_state(), torch_like.empty(10, device="cuda")
    default.manual_seed(1)
    with on_a_stream(cuda):
        graph.capture_begin()
        results.append(outcome(cuda, lambda: torch_like.Generator("cuda")))
        numbers.uniform_(generator=generator)
        generator.graphsafe_set_state(other)
        results.append([generator.initial_seed(), generator.get_state().tolist()])
        for _ in range(2):
            numbers.uniform_(generator=generator)
        results.append(generator.graphsafe_get_state().get_state().tolist())
        numbers.uniform_()
        graph.capture_end()
    every = (generator, other, before, default)
    results.append([each.get_offset() for each in every])
    for _ in range(2):
        graph.replay()
        results.append([each.get_offset() for each in every])
    generator.graphsafe_set_state(torch_like.Generator("cuda"))
    graph.replay()
    return [*results, [each.get_offset() for each in every]]


def deleted_generator(cuda, torch_like):
    generator, graph = torch_like.Generator("cuda"), cuda.CUDAGraph()
    view, numbers = generator.graphsafe_get_state(), torch_like.empty(10, device="cuda")
    with on_a_stream(cuda):
        graph.capture_begin()
        numbers.uniform_(generator=generator)
        graph.capture_end()
    del generator
    graph.replay()
    return view.get_offset()


def several_generators_and_graphs(cuda, torch_like):
    numbers = torch_like.empty(10, device="cuda")
    default = cuda.default_generators[0]
    default.manual_seed(1)
    one, other = torch_like.Generator("cuda"), torch_like.Generator("cuda").manual_seed(4)
    first, second, results = cuda.CUDAGraph(), cuda.CUDAGraph(), []
    capture(cuda, first, lambda: numbers.uniform_(generator=one), lambda: numbers.uniform_(generator=other))
    capture(
        cuda, second, numbers.uniform_, lambda: numbers.uniform_(generator=one), lambda: numbers.normal_(generator=one)
    )
    for graph in (first, second, first):
        graph.replay()
        numbers.uniform_(generator=other)
        results.append([each.get_offset() for each in (one, other, default)])
    return results


def memory_of_seeds(cuda, torch_like):
    """A graph has memory for a seed and an offset of each generator that it draws from."""
    one, other = torch_like.Generator("cuda"), torch_like.Generator("cuda")
    numbers, graph, steps = torch_like.empty(10, device="cuda"), cuda.CUDAGraph(), []
    with on_a_stream(cuda):
        graph.capture_begin()
        steps.append(blocks(cuda))
        numbers.zero_()
        steps.append(blocks(cuda))
        for _ in range(2):
            numbers.uniform_()
            steps.append(blocks(cuda))
        numbers.uniform_(generator=one)
        steps.append(blocks(cuda))
        one.graphsafe_set_state(other)
        numbers.uniform_(generator=one)
        steps.append(blocks(cuda))
        numbers.uniform_(generator=other)
        steps.append(blocks(cuda))
        graph.capture_end()
    steps.append(blocks(cuda))
    shown = sorted(
        [list(segment["segment_pool_id"]), segment["stream"], [block["requested_size"] for block in segment["blocks"]]]
        for segment in cuda.memory_snapshot()
    )
    graph.replay()
    steps.append(blocks(cuda))
    graph.reset()
    return [*steps, blocks(cuda), shown]


def memory_of_seeds_after_a_replay_elsewhere(cuda, torch_like):
    numbers, graph, steps = torch_like.empty(10, device="cuda"), cuda.CUDAGraph(), []
    capture(cuda, graph, numbers.uniform_)
    with on_a_stream(cuda):
        graph.replay()
        graph.reset()
        steps.append(blocks(cuda))
        cuda.synchronize()
        kept = torch_like.empty(10, device="cuda")
    return [*steps, blocks(cuda), kept.numel()]


def memory_of_seeds_of_a_deleted_graph(cuda, torch_like):
    numbers, graph = torch_like.empty(10, device="cuda"), cuda.CUDAGraph()
    capture(cuda, graph, numbers.uniform_)
    steps = [blocks(cuda)]
    del graph
    return [*steps, blocks(cuda)]


def state_in_a_capture_has_memory(cuda, torch_like):
    generator, graph, steps = torch_like.Generator("cuda"), cuda.CUDAGraph(), []
    with on_a_stream(cuda):
        graph.capture_begin()
        generator.graphsafe_get_state()
        generator.manual_seed(generator.initial_seed())
        steps.append(blocks(cuda))
        generator.get_state()
        steps.append(blocks(cuda))
        torch_like.empty(10, device="cuda").zero_()
        graph.capture_end()
    graph.replay()
    return [*steps, blocks(cuda), generator.get_offset()]
