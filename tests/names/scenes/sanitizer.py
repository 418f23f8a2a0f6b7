"""torch.cuda._sanitizer: races between streams, synchronization states, error messages."""

from __future__ import annotations

import logging
from importlib import import_module
from traceback import StackSummary
from types import SimpleNamespace

from support.on_oracle import outcome


def sanitizer_of(cuda):
    return import_module(f"{cuda.__name__}._sanitizer")


def races(cuda, torch_like, program):
    """Run the program with two tensors of four elements and a second stream; return its outcome."""
    first, second = (torch_like.empty(4, device="cuda:0", dtype=torch_like.float32) for _ in range(2))
    side = cuda.Stream("cuda:0")
    cuda.synchronize(0)
    sanitizer = sanitizer_of(cuda).cuda_sanitizer
    sanitizer.enable()
    try:
        return outcome(cuda, program, first, second, side)
    finally:
        sanitizer.disable()


def copy_of_memory_written_by_another_stream(cuda, torch_like):
    def program(first, second, side):
        first.fill_(1.0)
        with cuda.stream(side):
            second.copy_(first)

    return races(cuda, torch_like, program)


def fill_of_memory_read_by_another_stream(cuda, torch_like):
    def program(first, second, side):
        second.copy_(first)
        with cuda.stream(side):
            first.fill_(1.0)

    return races(cuda, torch_like, program)


def fills_of_the_same_memory_on_two_streams(cuda, torch_like):
    def program(first, second, side):
        first.fill_(1.0)
        with cuda.stream(side):
            first.fill_(2.0)

    return races(cuda, torch_like, program)


def reads_of_the_same_memory_on_two_streams(cuda, torch_like):
    def program(first, second, side):
        other = first.clone()
        with cuda.stream(side):
            second.copy_(first)
        del other

    return races(cuda, torch_like, program)


def ordering(cuda, torch_like, order):
    def program(first, second, side):
        first.fill_(1.0)
        order(side)
        with cuda.stream(side):
            second.copy_(first)

    return races(cuda, torch_like, program)


def ordered_accesses(cuda, torch_like):
    def by_event(side):
        event = cuda.Event()
        event.record()
        side.wait_event(event)

    def by_a_waited_event(side):
        event = cuda.Event()
        event.record()
        event.synchronize()

    orders = (
        lambda side: side.wait_stream(cuda.current_stream()),
        by_event,
        by_a_waited_event,
        lambda side: cuda.current_stream().synchronize(),
        lambda side: cuda.synchronize(),
    )
    return [ordering(cuda, torch_like, order) for order in orders]


def unordered_accesses(cuda, torch_like):
    def by_an_earlier_event(side):
        event = cuda.Event()
        event.record(side)
        side.wait_event(event)

    orders = (
        by_an_earlier_event,
        lambda side: cuda.current_stream().wait_stream(side),
        lambda side: side.synchronize(),
    )
    return [ordering(cuda, torch_like, order) for order in orders]


def clocks(cuda, torch_like):
    orders = sanitizer_of(cuda).StreamSynchronizations()
    for stream in (1, 2):
        orders.create_stream(stream)
    orders.create_event(7)
    results = []

    def append_results():
        pairs = ((1, 2), (2, 1), (0, 1), (0, 2), (1, 1))
        results.append([[orders.is_ordered_after(a, number, b) for a, b in pairs] for number in (1, 2, 3)])

    orders.update_seq_num(1, 1)
    orders.record_state(7, 1)
    orders.update_seq_num(1, 2)
    append_results()
    orders.stream_wait_for_event(2, 7)
    append_results()
    orders.update_seq_num(2, 3)
    orders.all_streams_wait_for_event(7)
    orders.create_stream(3)
    results.append([orders.is_ordered_after(3, 1, 1), orders.is_ordered_after(3, 2, 1)])
    orders.all_streams_wait_for_stream(2)
    append_results()
    orders.delete_event(7)
    orders.update_seq_num(1, 9)
    orders.sync_all_streams()
    orders.create_stream(4)
    results.append(
        [orders.is_ordered_after(4, 9, 1), orders.is_ordered_after(4, 10, 1), orders.is_ordered_after(4, 0, 5)]
    )
    return results


def error_texts(cuda, torch_like):
    names = sanitizer_of(cuda)
    kinds = names.AccessType.READ, names.AccessType.WRITE
    stack = StackSummary.from_list([("program.py", 3, "main", "x.copy_(y)")])
    accesses = [
        names.Access(kinds[0], 1, 5, "copy", ["a", "b"], False, stack),
        names.Access(kinds[1], 2, 0, "fill", ["a"], True, stack),
        names.Access(kinds[1], 3, 6, "make", [], True, stack),
    ]
    errors = [
        names.UnsynchronizedAccessError(4096, None, accesses[0], accesses[1]),
        names.UnsynchronizedAccessError(4096, stack, accesses[2], accesses[0]),
    ]
    return [[str(error) for error in errors], str(names.CUDASanitizerErrors(errors)), list(map(str, kinds))]


def zip_by_key(cuda, torch_like):
    return [list(each) for each in sanitizer_of(cuda).zip_by_key({"a": 1, "b": 2, "c": 3}, {"c": 4, "a": 5})]


def launched(handler, stream, reads=(), writes=()):
    """Report a launch; return the races as (address, current stream, previous stream, number of the previous)."""
    aliases = {each: ["x"] for each in (*reads, *writes)}
    found = handler._handle_kernel_launch(stream, reads, writes, set(writes), "op", aliases)
    return [
        [each.data_ptr, str(each.current_access.type), each.previous_access.stream, each.previous_access.seq_num]
        for each in found
    ]


def races_in_a_trace(cuda, torch_like):
    make, rows = sanitizer_of(cuda).EventHandler, []
    handler = make()
    rows += [launched(handler, 1, reads=[7]), launched(handler, 2, reads=[7]), launched(handler, 2, writes=[7])]
    rows += [launched(handler, 1, reads=[7]), launched(handler, 3, writes=[7, 8])]
    handler = make()
    rows.append(launched(handler, 1, writes=[7, 8]))
    handler._handle_event_creation(5)
    handler._handle_event_record(5, 1)
    rows += [launched(handler, 2, reads=[7])]
    handler._handle_event_wait(5, 3)
    rows += [launched(handler, 3, reads=[7]), launched(handler, 3, writes=[7]), launched(handler, 1, reads=[8])]
    handler._handle_event_deletion(5)
    handler._handle_event_wait(5, 4)
    rows.append(launched(handler, 4, writes=[8]))
    for synchronize in (
        lambda: handler._handle_stream_synchronization(4),
        handler._handle_device_synchronization,
        lambda: (handler._handle_event_record(6, 4), handler._handle_event_synchronization(6)),
    ):
        rows.append(launched(handler, 4, writes=[8]))
        synchronize()
        handler._handle_stream_creation(9)
        rows.append(launched(handler, 9, reads=[8]))
        handler._handle_stream_synchronization(9)
    handler._handle_memory_deallocation(8)
    handler._handle_memory_allocation(8)
    return rows, launched(handler, 1, writes=[8]), handler.seq_num


def messages_about_a_trace(cuda, torch_like):
    names, messages = sanitizer_of(cuda), []

    class Kept(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage().replace("some torch operations", "some forebay operations"))

    logger, handler = names.logger, names.EventHandler()
    level, kept = logger.level, Kept()
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    try:
        handler._handle_event_deletion(0)
        handler._handle_memory_deallocation(0)
        handler._handle_event_creation(1)
        handler._handle_event_creation(1)
        handler._handle_memory_allocation(1)
        handler._handle_memory_allocation(1)
        handler._handle_stream_creation(1)
        handler._handle_stream_creation(1)
        handler._handle_event_wait(2, 3)
        handler._handle_kernel_launch(4, {5}, {6}, {6}, "op", {5: [], 6: []})
    finally:
        logger.removeHandler(kept)
        logger.setLevel(level)
    return messages


def arguments_of_a_call(cuda, torch_like):
    names = sanitizer_of(cuda)

    def argument(name, is_write=None):
        alias = None if is_write is None else SimpleNamespace(is_write=is_write)
        return SimpleNamespace(name=name, alias_info=alias)

    schema = SimpleNamespace(
        arguments=[argument("self"), argument("others"), argument("view", False), argument("out", True)],
        returns=[argument("", None)],
    )
    tensors = {name: torch_like.empty(2, device="cuda:0") for name in "abcd"}
    tensors |= {"host": torch_like.empty(2), "empty": torch_like.empty(0, device="cuda:1")}
    by_address = {tensor.data_ptr() or id(tensor): name for name, tensor in tensors.items()}
    a, b, c, d, host, empty = tensors.values()

    def row(args, kwargs, output, is_factory):
        handler = names.ArgumentHandler()
        handler.parse_inputs(schema, args, kwargs, is_factory=is_factory)
        handler.parse_outputs(schema, output, is_factory=is_factory)
        sets = handler.dataptrs_read, handler.dataptrs_written, handler.outputs
        aliases = {by_address[each]: found for each, found in handler.tensor_aliases.items()}
        return [sorted(by_address[each] for each in found) for found in sets], aliases

    calls = [((a, [b, host, (a, 3)], c), {"out": d}), ((empty, {"x": b}), {"out": d, "unknown": c}), ((a,), {})]
    zipped = [(each.name, value) for each, value in names.zip_arguments(schema, (1, 2), {"out": 3, "other": 4})]
    return zipped, [row(*call, output, factory) for call in calls for output in (d, [b]) for factory in (False, True)]


def types_of_a_trace(cuda, torch_like):
    names = sanitizer_of(cuda)
    aliases = [getattr(names, name) is int for name in ("DataPtr", "StreamId", "EventId", "SeqNum")]
    info = names.TensorInfo(None)
    accessed = names._TensorsAccessed()
    accessed.create_tensor(3, None)
    accessed.add_read(3, "read")
    before = accessed.were_there_reads_since_last_write(3), accessed.get_reads(3), accessed.get_write(3)
    accessed.set_write(3, "write")
    after = accessed.were_there_reads_since_last_write(3), accessed.get_reads(3), accessed.get_write(3)
    return aliases, [info.reads, info.write, info == names.TensorInfo(None)], before, after, list(accessed.accesses)
