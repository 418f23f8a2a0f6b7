"""torch.cuda._sanitizer: races between streams, synchronization states, error messages."""

from __future__ import annotations

from importlib import import_module
from traceback import StackSummary

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
