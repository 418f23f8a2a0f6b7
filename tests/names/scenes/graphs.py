"""CUDA graphs: methods in each state, errors during capture, pools, generators, hooks."""

from __future__ import annotations

from support.on_oracle import outcome


def on_a_stream(cuda):
    return cuda.stream(cuda.Stream())


def captured(cuda, torch_like, graph, **options):
    graph.capture_begin(**options)
    torch_like.empty(10, device="cuda").zero_()
    graph.capture_end()


def empty_graph(cuda, torch_like):
    graph = cuda.CUDAGraph()
    names = ("replay", "pool", "pools", "instantiate", "raw_cuda_graph", "raw_cuda_graph_exec", "reset")
    return {name: outcome(cuda, getattr(graph, name)) for name in (*names, "get_currently_capturing_graph")}


def capture_of_the_default_stream(cuda, torch_like):
    return outcome(cuda, cuda.CUDAGraph().capture_begin)


def unknown_capture_mode(cuda, torch_like):
    with on_a_stream(cuda):
        return outcome(cuda, lambda: cuda.CUDAGraph().capture_begin(capture_error_mode="x"))


def capture_status(cuda, torch_like):
    results, graph = [cuda.is_current_stream_capturing()], cuda.CUDAGraph()
    with on_a_stream(cuda):
        graph.capture_begin()
        torch_like.empty(10, device="cuda").zero_()
        results += [cuda.is_current_stream_capturing(), cuda.current_stream().is_capturing()]
        results += [cuda.CUDAGraph.get_currently_capturing_graph() is graph]
        results += [outcome(cuda, graph.pool), outcome(cuda, graph.instantiate)]
        graph.capture_end()
    return [*results, cuda.is_current_stream_capturing()]


def capture_must_end_on_its_stream(cuda, torch_like):
    graph = cuda.CUDAGraph()
    with on_a_stream(cuda):
        graph.capture_begin()
        torch_like.empty(10, device="cuda").zero_()
        with on_a_stream(cuda):
            results = outcome(cuda, graph.capture_end)
        graph.capture_end()
    return results


def state_after_each_step(cuda, torch_like):
    results = {}
    for keep in (False, True):
        graph, steps = cuda.CUDAGraph(keep), []
        with on_a_stream(cuda):
            graph.capture_begin()
            torch_like.empty(10, device="cuda").zero_()
            for step in ("capture_end_pre", "instantiate", "capture_end_post", "instantiate"):
                steps.append([step, outcome(cuda, getattr(graph, step))])
                for name in ("raw_cuda_graph", "raw_cuda_graph_exec"):
                    found = outcome(cuda, getattr(graph, name))
                    steps.append([name, found.get("message", "an int")])
            steps.append(outcome(cuda, graph.capture_begin))
        graph.replay()
        graph.reset()
        steps += [outcome(cuda, graph.replay), outcome(cuda, graph.pool)]
        results[str(keep)] = steps
    return results


def pools_of_graphs(cuda, torch_like):
    one, other, third = cuda.CUDAGraph(), cuda.CUDAGraph(), cuda.CUDAGraph()
    with on_a_stream(cuda):
        captured(cuda, torch_like, one)
        captured(cuda, torch_like, other, pool=one.pool())
        captured(cuda, torch_like, third)
        handle = cuda.graph_pool_handle()
        third.reset()
        third.capture_begin(pool=handle)
        torch_like.empty(10, device="cuda").zero_()
        results = [outcome(cuda, lambda: third._retain_pool((0, 0))), outcome(cuda, lambda: third._retain_pool(None))]
        third._retain_pool(one.pool())
        third.capture_end()
    same = [one.pool() == other.pool(), third.pool() == handle, third.pools() == [handle, one.pool()]]
    return [*results, *same, handle[0], one.pool()[1], outcome(cuda, lambda: third._retain_pool(handle))]


def concurrent_captures_in_one_pool(cuda, torch_like):
    one, other, handle = cuda.CUDAGraph(), cuda.CUDAGraph(), cuda.graph_pool_handle()
    with on_a_stream(cuda):
        one.capture_begin(pool=handle)
        torch_like.empty(10, device="cuda").zero_()
        with on_a_stream(cuda):
            results = outcome(cuda, lambda: other.capture_begin(pool=handle))
        one.capture_end()
    return results


def generator_in_a_capture(cuda, torch_like):
    cuda.manual_seed(5)
    state = cuda.get_rng_state()
    moved = cuda.get_rng_state()
    moved[8] = 8
    generator, graph, results = cuda.default_generators[0], cuda.CUDAGraph(), {}
    with on_a_stream(cuda):
        graph.capture_begin()
        results["seed"] = outcome(cuda, generator.seed)
        results["get_offset"] = outcome(cuda, generator.get_offset)
        results["set_offset"] = outcome(cuda, lambda: generator.set_offset(4))
        results["clone_state"] = outcome(cuda, generator.clone_state)
        results["another seed"] = outcome(cuda, lambda: cuda.manual_seed(6))
        results["the same seed"] = outcome(cuda, lambda: cuda.manual_seed(5))
        results["set_rng_state"] = outcome(cuda, lambda: cuda.set_rng_state(moved))
        results["state"] = cuda.get_rng_state().tolist()
        torch_like.empty(10, device="cuda").uniform_()
        results["state behind a draw"] = cuda.get_rng_state().tolist()
        graph.capture_end()
    results["captured"] = cuda.get_rng_state().tolist() == state.tolist()
    for _ in range(2):
        graph.replay()
    results["replayed"] = generator.get_offset()
    return results


def separate_generator(cuda, torch_like):
    generator, graph = torch_like.Generator("cuda"), cuda.CUDAGraph()
    with on_a_stream(cuda):
        graph.capture_begin()
        torch_like.empty(10, device="cuda").uniform_(generator=generator)
        torch_like.empty(10, device="cuda").uniform_(generator=generator)
        graph.capture_end()
    before = generator.get_offset()
    graph.replay()
    return [before, generator.get_offset()]


def capture_hooks(cuda, torch_like):
    results, graph = [], cuda.CUDAGraph()
    handles = [cuda.graphs.register_graph_destroy_hook(lambda ids: results.append(["all: destroyed", sorted(ids)]))]
    for name in ("capture_start", "capture_end", "instantiate", "replay_start", "replay_end"):
        register = getattr(cuda.graphs, f"register_graph_{name}_hook")
        handles.append(register(lambda _, name=name: results.append(f"all: {name}")))
    for name in ("capture_start", "capture_end", "post_instantiate", "replay_start", "replay_end"):
        getattr(graph, f"register_{name}_hook")(lambda _, name=name: results.append(name))
    graph.register_destroy_callback(lambda: results.append("end"))
    graph.register_destroy_callback(lambda: results.append("taken back")).remove()
    with on_a_stream(cuda):
        captured(cuda, torch_like, graph)
    graph.replay()
    graph.reset()
    graph.reset()
    for handle in handles:
        handle.remove()
    return results


def graph_context_manager(cuda, torch_like):
    graph, results = cuda.CUDAGraph(), []
    before = cuda.current_stream()
    with cuda.graph(graph):
        results += [cuda.current_stream() == cuda.graph.default_capture_stream, cuda.is_current_stream_capturing()]
        torch_like.empty(10, device="cuda").zero_()
    results.append(cuda.current_stream() == before)
    try:
        with cuda.graph(cuda.CUDAGraph()):
            torch_like.empty(10, device="cuda").zero_()
            {}["in it"]
    except KeyError as error:
        results.append(str(error))
    results.append(cuda.current_stream() == before)
    wrong = (
        {"x": 1},
        {"backend": "x"},
        {"py_stack_filter_paths": 3},
        {"record_py_stacks": True, "backend": "edge_walk"},
    )
    for config in wrong:
        results.append(outcome(cuda, lambda config=config: cuda.graph(graph, annotation_config=config) and None))
    return results


def graphed_callables(cuda, torch_like):
    return [
        outcome(cuda, lambda: cuda.make_graphed_callables(lambda x: x, (3,))),
        outcome(cuda, lambda: cuda.make_graphed_callables((lambda x: x,), ((3,),))),
    ]


def external_events(cuda, torch_like):
    """Events recorded in a capture can be used after a replay."""
    start, end = (cuda.Event(enable_timing=True, external=True) for _ in range(2))
    graph, steps = cuda.CUDAGraph(), []
    with on_a_stream(cuda):
        graph.capture_begin()
        start.record()
        torch_like.empty(10, device="cuda").zero_()
        end.record()
        end.wait()
        graph.capture_end()
    steps.append([start.query(), outcome(cuda, start.synchronize)])
    for _ in range(2):
        graph.replay()
        cuda.current_stream().wait_event(end)
        cuda.synchronize()
        steps.append([start.query(), end.query(), start.elapsed_time(end) >= 0])
    return steps
