"""torch.cuda.comm: broadcast, scatter, gather and reduce_add across devices, and their errors."""

from __future__ import annotations

from importlib import import_module

from support.on_oracle import outcome


def comm_of(cuda):
    return import_module(f"{cuda.__name__}.comm")


def placement(tensor):
    return [str(tensor.device), list(tensor.shape), list(tensor.stride())]


def placement_and_values(tensor):
    return [*placement(tensor), tensor.tolist()]  # tolist copies: the stand-in can copy only contiguous memory


def iota(torch_like, *shape, device="cuda:0", dtype="float32"):
    total = 1
    for length in shape:
        total *= length
    numbers = [float(number) for number in range(total)]
    return torch_like.tensor(numbers, device=device, dtype=getattr(torch_like, dtype)).view(*shape)


def broadcast_copies_to_other_devices(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 2, 3)
    found = comm.broadcast(tensor, [0, "cuda:1", 0, torch_like.device("cuda:1")])
    return [[placement_and_values(each) for each in found], [each is tensor for each in found], found[1] is found[3]]


def broadcast_makes_copies_contiguous(cuda, torch_like):
    tensor = iota(torch_like, 4, 4).transpose(0, 1)[1:3]
    return [placement(each) for each in comm_of(cuda).broadcast(tensor, [0, 1, 0, 1])]


def broadcast_into_tensors(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 4)
    outs = [torch_like.zeros(4, device=f"cuda:{index}", dtype=torch_like.float32) for index in (1, 0)]
    found = comm.broadcast(tensor, out=outs)
    return [
        [placement_and_values(each) for each in found],
        [mine is theirs for mine, theirs in zip(outs, found, strict=True)],
    ]


def invalid_broadcasts(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 4)
    cpu = torch_like.tensor([1.0], device="cpu")
    none = outcome(cuda, comm.broadcast, tensor)
    places = [outcome(cuda, comm.broadcast, tensor, devices) for devices in (["cpu"], [0, -1], ["cuda"], 2)]
    missing = outcome(cuda, comm.broadcast, tensor, [99])
    outs = [outcome(cuda, comm.broadcast, tensor, out=[iota(torch_like, *shape)]) for shape in ((6,), (2, 2))]
    cpu_error = outcome(cuda, comm.broadcast, tensor, out=[cpu])["message"]
    not_a_list = outcome(cuda, comm.broadcast, tensor, out=tensor)["error"]
    return [none, places, missing["error"], missing["message"].splitlines()[:2], outs, cpu_error, not_a_list]


def invalid_coalesced_broadcasts(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 4)
    size = outcome(cuda, comm.broadcast_coalesced, [tensor], [0, 1], -5)["error"]
    return [
        outcome(cuda, comm.broadcast_coalesced, [tensor], [1, 0]),
        comm.broadcast_coalesced([], [0, 1]),
        size,
    ]


def complex_tensors_as_pairs(cuda, torch_like):
    comm, tensor = comm_of(cuda), torch_like.tensor([1 + 2j, 3 - 4j], device="cuda:0", dtype=torch_like.complex64)
    copied, scattered = comm.broadcast(tensor, [1, 0, 1]), comm.scatter(tensor, [0, 1])
    return [
        [placement_and_values(each) for each in found] for found in (copied, scattered, [comm.gather([tensor, tensor])])
    ]


def scatter_in_equal_chunks(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 5, 2)
    found = [
        [placement_and_values(each) for each in comm.scatter(tensor, places)]
        for places in ([0, 1], [1, 0], [0, 1, 0, 1], [0, 0])
    ]
    found += [[placement(each) for each in comm.scatter(tensor, [0, 1], dim=dim)] for dim in (1, -1)]
    fewer = [placement_and_values(each) for each in comm.scatter(tensor[:1], [0, 1])]
    none = [placement(each)[:2] for each in comm.scatter(tensor[:0], [0, 1])]
    return [found, fewer, none, comm.scatter(tensor, [0, 1])[0].data_ptr() == tensor.data_ptr()]


def scatter_in_chunks_of_given_sizes(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 6)
    sizes = [1, 5], [0, 6], [6], [1, 4], [-1, 7]
    found = []
    for each in sizes:
        result = outcome(
            cuda, lambda each=each: [placement_and_values(part) for part in comm.scatter(tensor, [0, 1], each)]
        )
        found.append(result)
    return found


def scatter_into_tensors(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 6, 2)
    outs = [torch_like.zeros(rows, 2, device=f"cuda:{rows % 2}", dtype=torch_like.float32) for rows in (2, 3, 1)]
    return [placement_and_values(each) for each in comm.scatter(tensor, out=outs)]


def invalid_scatters(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 6, 2)
    cpu = torch_like.tensor([1.0], device="cpu")
    outs = [iota(torch_like, 2, 2)], [iota(torch_like, 6, 3)], [iota(torch_like, 6)], []
    return [
        [outcome(cuda, comm.scatter, tensor, None, None, 0, None, out=each) for each in outs],
        outcome(cuda, comm.scatter, tensor, out=[cpu])["message"],
        outcome(cuda, comm.scatter, tensor, [0], out=[tensor])["message"].split("=")[0],
        outcome(cuda, comm.scatter, tensor, None, [6], out=[tensor]),
        [outcome(cuda, comm.scatter, tensor, [0, 1], dim=dim) for dim in (2, -3)],
        outcome(cuda, comm.scatter, tensor, []),
        outcome(cuda, comm.scatter, tensor)["error"],
        outcome(cuda, comm.scatter, torch_like.tensor(1.0, device="cuda:0"), [0, 1]),
        outcome(cuda, comm.scatter, tensor, ["cpu"]),
        outcome(cuda, comm.scatter, tensor, [0], streams=[5]),
    ]


def scatter_on_streams(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 4)
    both = [cuda.Stream("cuda:0"), cuda.Stream("cuda:1")]
    few, none = comm.scatter(tensor, [0, 1], streams=both[:1]), comm.scatter(tensor, [0, 1], streams=[None, both[1]])
    wrong = outcome(cuda, comm.scatter, tensor, [0, 1], streams=both[::-1])
    cuda.synchronize(1)
    return [[placement_and_values(each) for each in found] for found in (few, none)] + [
        wrong["error"],
        wrong["message"][:55],
    ]


def gather_concatenates(cuda, torch_like):
    comm = comm_of(cuda)
    parts = [iota(torch_like, 2, 2), iota(torch_like, 1, 2, device="cuda:1")]
    places = [placement_and_values(comm.gather(parts, 0, place)) for place in (None, 0, "cuda:1", "cpu")]
    wide = placement(comm.gather([parts[0], parts[0]], -1))
    out = placement_and_values(
        comm.gather(parts, out=torch_like.zeros(3, 2, device="cuda:1", dtype=torch_like.float32))
    )
    return [places, wide, out, comm.gather(parts[:1]) is parts[0]]


def gather_to_minus_one_is_deprecated(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 2)
    return outcome(cuda, lambda: placement_and_values(comm.gather([tensor], 0, -1)))


def invalid_gathers(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 2, 2)
    cpu = torch_like.tensor([[1.0, 2.0]], device="cpu")
    zero = torch_like.tensor(1.0, device="cuda:0")
    missing = outcome(cuda, comm.gather, [tensor], 0, 99)
    return [
        outcome(cuda, comm.gather, []),
        outcome(cuda, comm.gather, [], out=tensor),
        outcome(cuda, comm.gather, [tensor, cpu])["message"],
        outcome(cuda, comm.gather, [tensor, iota(torch_like, 4)]),
        outcome(cuda, comm.gather, [tensor, iota(torch_like, 2, 3)]),
        [outcome(cuda, comm.gather, [tensor], dim) for dim in (2, -3)],
        outcome(cuda, comm.gather, [zero, zero]),
        outcome(cuda, comm.gather, [tensor], 0, 0, out=tensor),
        outcome(cuda, comm.gather, [tensor, tensor], out=iota(torch_like, 3, 2)),
        [missing["error"], missing["message"].splitlines()[:2]],
    ]


def invalid_additions(cuda, torch_like):
    comm, tensor = comm_of(cuda), iota(torch_like, 4)
    cpu = torch_like.tensor([1.0], device="cpu")
    there = iota(torch_like, 4, device="cuda:1")
    return [
        outcome(cuda, comm.reduce_add, [tensor, there], 5),
        outcome(cuda, comm.reduce_add, [there]),
        outcome(cuda, comm.reduce_add, [tensor, cpu]),
        outcome(cuda, comm.reduce_add, [tensor, iota(torch_like, 2, 3)]),
        outcome(cuda, comm.reduce_add, [tensor, torch_like.tensor(1.0, device="cuda:1")]),
        outcome(cuda, comm.reduce_add, []),
        outcome(cuda, comm.reduce_add, [tensor, tensor], "cpu"),
        outcome(cuda, comm.reduce_add, [iota(torch_like, 4, dtype="float64"), there]),
        comm.reduce_add([tensor]) is tensor,
        outcome(cuda, comm.reduce_add_coalesced, [[tensor], [there, there]]),
        comm.reduce_add_coalesced([]),
        comm.reduce_add_coalesced([[], []]),
        [placement(each) for each in comm.reduce_add_coalesced([[tensor, tensor[:2]]])],
    ]


def strides_of_sums_without_nccl(cuda, torch_like):
    """Sums of tensors that are not all contiguous: the strides of the result are those of the inputs, without gaps."""
    comm = comm_of(cuda)
    layouts = {
        "transposed": ((3, 4), (1, 3), (1, 3)),
        "transposed and contiguous": ((3, 4), (1, 3), (4, 1)),
        "contiguous and transposed": ((3, 4), (4, 1), (1, 3)),
        "with gaps": ((3, 4), (8, 1), (8, 1)),
        "transposed with gaps": ((3, 4), (1, 8), (1, 8)),
        "expanded": ((3, 4), (1, 0), (1, 0)),
        "expanded and transposed": ((3, 4), (1, 0), (1, 3)),
        "expanded and contiguous": ((3, 4), (0, 1), (4, 1)),
        "scalars expanded": ((3, 4), (0, 0), (1, 3)),
        "channels last": ((2, 3, 4, 5), (60, 1, 15, 3), (60, 1, 15, 3)),
        "channels last and contiguous": ((2, 3, 4, 5), (60, 1, 15, 3), (60, 20, 5, 1)),
        "three dimensions": ((2, 3, 4), (1, 8, 2), (12, 4, 1)),
        "three dimensions expanded": ((2, 3, 4), (0, 1, 3), (1, 2, 0)),
    }
    found = {}
    for name, (shape, *strides) in layouts.items():
        for devices in ((0, 1), (1, 0), (0, 0)):
            inputs = []
            for device, steps in zip(devices, strides, strict=True):
                memory = torch_like.empty(200, device=f"cuda:{device}").untyped_storage()
                inputs.append(torch_like.empty(0, device=f"cuda:{device}").set_(memory, 0, shape, steps))
            found[f"{name} {devices}"] = placement(comm.reduce_add(inputs, 0))
    return found


def sums_of_one_list_are_contiguous(cuda, torch_like):
    tensor = torch_like.empty(4, 3, device="cuda").transpose(0, 1)
    comm = comm_of(cuda)
    return placement(comm.reduce_add([tensor])), [placement(each) for each in comm.reduce_add_coalesced([[tensor]])]
