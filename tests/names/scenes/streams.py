"""Streams: ids, round-robin reuse, priorities, the current stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from support.on_oracle import outcome

FRESH_PROCESS = True  # the next id depends on the streams created before


def raise_error():
    raise KeyError("through")


def round_robin_of_32(cuda, torch_like):
    made = [cuda.Stream().stream_id for _ in range(34)]
    return made, [cuda.Stream(1).stream_id for _ in range(3)]


def priorities(cuda, torch_like):
    made = {str(priority): cuda.Stream(priority=priority) for priority in (0, -1, -2, -3, -4, -100, 1, 5)}
    return {name: (stream.stream_id, stream.priority) for name, stream in made.items()}, cuda.Stream.priority_range()


def device_of_streams(cuda, torch_like):
    places = (None, 0, 1, "cuda", "cuda:1", -1, torch_like.device("cuda", 1))
    with cuda.device(1):
        here = [cuda.Stream(place).device_index for place in places]
    return here, [str(cuda.Stream(place).device) for place in places], outcome(cuda, cuda.Stream, "cpu")


def default_stream(cuda, torch_like):
    stream = cuda.default_stream(1)
    properties = (stream.stream_id, stream.device_index, stream.device_type, stream.priority, stream.cuda_stream)
    return properties, repr(stream), stream == cuda.current_stream(1), cuda.default_stream() == cuda.current_stream()


def handles(cuda, torch_like):
    stream = cuda.Stream()
    protocol = stream.__cuda_stream__()
    same = stream._as_parameter_.value == stream.cuda_stream == stream.native_handle == protocol[1]
    return same, protocol[0], stream.cuda_stream > 0, repr(stream).startswith("<") and "device=cuda:0" in repr(stream)


def equality(cuda, torch_like):
    streams = [cuda.Stream() for _ in range(33)]
    first, last = streams[0], streams[32]
    same = first == last, hash(first) == hash(last), first == streams[1], first != streams[1]
    return same, first == 1, first == None, cuda.default_stream(0) == cuda.default_stream(1)  # noqa: E711 -- the comparison is the subject


def stream_by_id(cuda, torch_like):
    first = cuda.Stream()
    again = cuda.Stream(stream_id=first.stream_id, device_index=first.device_index, device_type=first.device_type)
    cuda._set_stream_by_id(again.stream_id, 0, 1)
    return again == first, again.cuda_stream == first.cuda_stream, cuda.current_stream() == first


def external_streams(cuda, torch_like):
    stream = cuda.Stream()
    outside = cuda.ExternalStream(stream.cuda_stream)
    made = cuda.get_stream_from_external(stream.cuda_stream, "cuda:0")
    ids = outside.stream_id == made.stream_id == stream.cuda_stream, outside.cuda_stream == stream.cuda_stream
    with cuda.stream(outside):
        inside = cuda.current_stream() == outside
    return outside == stream, hash(outside) == hash(stream), ids, inside, isinstance(outside, cuda.Stream)


def set_stream(cuda, torch_like):
    stream = cuda.Stream(1)
    cuda.set_stream(stream)
    seen = [cuda.current_device(), cuda.current_stream() == stream, cuda.current_stream(0).stream_id]
    cuda.set_stream(None)
    seen.append(cuda.current_stream() == stream)
    cuda.set_stream(cuda.default_stream(0))
    return [*seen, cuda.current_device(), cuda.current_stream(1) == stream]


def current_stream_is_per_thread(cuda, torch_like):
    stream = cuda.Stream(1)
    cuda.set_stream(stream)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(lambda: (cuda.current_device(), cuda.current_stream(1).stream_id)).result(timeout=10)
    return there, cuda.current_device(), cuda.current_stream() == stream


def stream_context(cuda, torch_like):
    stream = cuda.Stream()
    seen = []
    with cuda.stream(stream) as given:
        seen += [given is None, cuda.current_stream() == stream]
        with cuda.stream(None):
            seen.append(cuda.current_stream() == stream)
        with cuda.stream(cuda.Stream()), cuda.stream(stream):
            seen.append(cuda.current_stream() == stream)
        seen.append(cuda.current_stream() == stream)
    return [*seen, cuda.current_stream() == cuda.default_stream()]


def stream_context_on_another_device(cuda, torch_like):
    here, there, before = cuda.Stream(0), cuda.Stream(1), cuda.Stream(1)
    with cuda.stream(before):
        pass
    seen = []
    with cuda.stream(here):
        context = cuda.stream(there)
        with context:
            seen += [cuda.current_device(), cuda.current_stream() == there, cuda.current_stream(0) == here, context.idx]
        seen += [cuda.current_device(), cuda.current_stream() == here, cuda.current_stream(1) == cuda.default_stream(1)]
    return seen


def stream_context_restores_after_error(cuda, torch_like):
    try:
        with cuda.stream(cuda.Stream(1)):
            raise_error()
    except KeyError as error:
        return str(error), cuda.current_device(), cuda.current_stream().stream_id, cuda.current_stream(1).stream_id


def stream_as_context_manager(cuda, torch_like):
    stream = cuda.Stream(1)
    with stream as given:
        inside = given == stream, cuda.current_stream() == stream, cuda.current_device()
    return inside, cuda.current_stream().stream_id, cuda.current_device()


def stream_of_a_missing_device(cuda, torch_like):
    return [outcome(cuda, use, 9) for use in (cuda.current_stream, cuda.default_stream)]


def none_denotes_the_current_device(cuda, torch_like):
    with cuda.device(1):
        indices = [function(-1).device_index for function in (cuda.current_stream, cuda.default_stream)]
        return indices, cuda.synchronize(-1), [outcome(cuda, cuda.current_stream, index) for index in (-5, 2)]


def invalid_constructor_arguments(cuda, torch_like):
    invalid = [{"priority": 1.5}, {"priority": "x"}, {"priority": None}, {"nonsense": 3}]
    return [outcome(cuda, lambda named=named: cuda.Stream(**named)) for named in invalid]


def waits_and_queries(cuda, torch_like):
    stream, other = cuda.Stream(), cuda.Stream(1)
    event = stream.record_event()
    done = (other.wait_event(event), other.wait_stream(stream), stream.synchronize(), other.synchronize())
    return done, stream.query(), other.query(), isinstance(event, cuda.Event), stream.record_event(event) is event


def capturing(cuda, torch_like):
    return cuda.Stream().is_capturing(), cuda.is_current_stream_capturing()
