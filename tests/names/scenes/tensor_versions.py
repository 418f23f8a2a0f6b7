"""Tensor._version: which calls count as a change, and which tensors share a count."""

from __future__ import annotations

import copy
import pickle
import warnings
from importlib import import_module

from support.on_oracle import outcome


def changed(torch_like, device, dtype="float32"):
    """Return a tensor of version 0."""
    return torch_like.empty(4, device=device, dtype=getattr(torch_like, dtype))


def rows(torch_like, calls):
    """Return, for each call and device, how much the version of a tensor grew, and the version of the result."""
    found = {}
    for device in ("cpu", "cuda"):
        for name, call in calls.items():
            tensor = changed(torch_like, device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = call(tensor)
            found[f"{name} {device}"] = tensor._version, getattr(result, "_version", None)
    return found


def changes_in_place(cuda, torch_like):
    def probabilities(tensor):
        return torch_like.empty(4, device=tensor.device).zero_()

    return rows(
        torch_like,
        {
            "none": lambda each: each,
            "fill_": lambda each: each.fill_(1),
            "zero_": lambda each: each.zero_(),
            "copy_": lambda each: each.copy_(torch_like.empty(4, device=each.device)),
            "copy_ of itself": lambda each: each.copy_(each),
            "copy_ of the host": lambda each: each.copy_(torch_like.empty(4)),
            "copy_ without waiting": lambda each: each.copy_(torch_like.empty(4), non_blocking=True),
            "copy_ of another dtype": lambda each: each.copy_(torch_like.empty(4, dtype=torch_like.float64)),
            "uniform_": lambda each: each.uniform_(),
            "normal_": lambda each: each.normal_(),
            "exponential_": lambda each: each.exponential_(),
            "cauchy_": lambda each: each.cauchy_(),
            "log_normal_": lambda each: each.log_normal_(),
            "geometric_": lambda each: each.geometric_(0.5),
            "bernoulli_": lambda each: each.bernoulli_(),
            "bernoulli_ of tensor": lambda each: each.bernoulli_(probabilities(each)),
            "random_": lambda each: each.random_(),
            "random_ below": lambda each: each.random_(4),
            "random_ between": lambda each: each.random_(1, 4),
            "an element": lambda each: each.__setitem__(0, 1),
            "a slice": lambda each: each.__setitem__(slice(0, 2), 1),
            "a slice of a tensor": lambda each: each.__setitem__(slice(0, 2), torch_like.empty(2, device=each.device)),
            "an empty slice": lambda each: each.__setitem__(slice(0, 0), 1),
            "all elements": lambda each: each.__setitem__(..., 1),
            "two changes": lambda each: each.fill_(1).zero_(),
        },
    )


def changes_through_other_tensors(cuda, torch_like):
    return rows(
        torch_like,
        {
            "view": lambda each: each.view(2, 2).fill_(1),
            "view as another dtype": lambda each: each.view(torch_like.int32).fill_(1),
            "element": lambda each: each[0].fill_(1),
            "empty view": lambda each: each[0:0].fill_(1),
            "view of a view": lambda each: each.view(2, 2)[0].fill_(1),
            "permute": lambda each: each.view(2, 2).permute(1, 0).fill_(1),
            "transpose": lambda each: each.view(2, 2).transpose(0, 1).fill_(1),
            "squeeze": lambda each: each.squeeze().fill_(1),
            "unsqueeze": lambda each: each.unsqueeze(0).fill_(1),
            "reshape": lambda each: each.reshape(2, 2).fill_(1),
            "flatten": lambda each: each.flatten().fill_(1),
            "detach": lambda each: each.detach().fill_(1),
            "the same by to": lambda each: each.to(torch_like.float32).fill_(1),
            "the same by contiguous": lambda each: each.contiguous().fill_(1),
            "as_tensor": lambda each: torch_like.as_tensor(each).fill_(1),
            "new of a tensor": lambda each: each.new(each).fill_(1),
            "data": lambda each: each.data.fill_(1),
            "storage": lambda each: each.untyped_storage().fill_(1),
            "typed storage": lambda each: each.storage().fill_(1),
            "an element of the storage": lambda each: each.storage().__setitem__(0, 1),
            "new of a storage": lambda each: each.new(each.storage()).fill_(1),
            "DLPack": lambda each: torch_like.from_dlpack(each).fill_(1),
        },
    )


def changes_of_memory(cuda, torch_like):
    return rows(
        torch_like,
        {
            "resize_ to the same": lambda each: each.resize_(4),
            "resize_ to more": lambda each: each.resize_(8),
            "resize_ to another shape": lambda each: each.resize_(2, 2),
            "resize_as_ the same": lambda each: each.resize_as_(torch_like.empty(4)),
            "resize_as_ another": lambda each: each.resize_as_(torch_like.empty(8)),
            "set_": lambda each: each.set_(),
            "set_ to a tensor": lambda each: each.set_(torch_like.empty(3, device=each.device)),
            "set_ to a storage": lambda each: each.set_(torch_like.empty(3, device=each.device).untyped_storage()),
            "resize of the storage": lambda each: each.untyped_storage().resize_(64),
            "requires_grad_": lambda each: each.requires_grad_(False),
        },
    )


def copies(cuda, torch_like):
    """Tensors that are made of a tensor of version 1."""
    return rows(
        torch_like,
        {
            "clone": lambda each: each.fill_(1).clone(),
            "contiguous": lambda each: each.fill_(1).view(2, 2).transpose(0, 1).contiguous(),
            "to a dtype": lambda each: each.fill_(1).to(torch_like.int32),
            "to a copy": lambda each: each.fill_(1).to(torch_like.float32, copy=True),
            "to the GPU": lambda each: each.fill_(1).to("cuda:1"),
            "to the CPU": lambda each: each.fill_(1).cuda(1).cpu(),
            "pinned": lambda each: each.fill_(1).cpu().pin_memory(),
            "detach": lambda each: each.fill_(1).detach(),
            "data": lambda each: each.fill_(1).data,
            "tensor": lambda each: torch_like.tensor(each.fill_(1)),
            "zeros_like": lambda each: torch_like.zeros_like(each.fill_(1)),
            "ones_like": lambda each: torch_like.ones_like(each.fill_(1)),
            "full_like": lambda each: torch_like.full_like(each.fill_(1), 2),
            "rand_like": lambda each: torch_like.rand_like(each.fill_(1)),
            "randn_like": lambda each: torch_like.randn_like(each.fill_(1)),
            "randint_like": lambda each: torch_like.randint_like(each.fill_(1), 4),
            "copy.copy": lambda each: copy.copy(each.fill_(1)),
            "copy.deepcopy": lambda each: copy.deepcopy(each.fill_(1)),
            "pickle": lambda each: pickle.loads(pickle.dumps(each.fill_(1))),
            "bernoulli": lambda each: torch_like.bernoulli(each.zero_()),
            "poisson": lambda each: torch_like.poisson(each.zero_()),
            "normal": lambda each: torch_like.normal(each.zero_(), 1.0),
            "normal of two": lambda each: torch_like.normal(each.zero_(), each),
        },
    )


def new_tensors(cuda, torch_like):
    made = {}
    for device in ("cpu", "cuda"):
        made |= {
            f"zeros {device}": torch_like.zeros(4, device=device),
            f"ones {device}": torch_like.ones(4, device=device),
            f"full {device}": torch_like.full((4,), 2.0, device=device),
            f"arange {device}": torch_like.arange(4, device=device),
            f"tensor {device}": torch_like.tensor([1.0, 2.0], device=device),
            f"rand {device}": torch_like.rand(4, device=device),
            f"randn {device}": torch_like.randn(4, device=device),
            f"randint {device}": torch_like.randint(0, 4, (4,), device=device),
            f"randperm {device}": torch_like.randperm(4, device=device),
            f"normal {device}": torch_like.normal(0.0, 1.0, (4,), device=device),
        }
    made["pinned ones"] = torch_like.ones(4, pin_memory=True)
    made["FloatTensor"] = torch_like.FloatTensor([1.0, 2.0])
    return {name: each._version for name, each in made.items()}


def outputs(cuda, torch_like):
    """Factories that write to a tensor of the right shape and of others."""
    factories = {
        "empty": lambda out: torch_like.empty(4, out=out),
        "zeros": lambda out: torch_like.zeros(4, out=out),
        "ones": lambda out: torch_like.ones(4, out=out),
        "full": lambda out: torch_like.full((4,), 2.0, out=out),
        "arange": lambda out: torch_like.arange(4, out=out),
        "rand": lambda out: torch_like.rand(4, out=out),
        "randn": lambda out: torch_like.randn(4, out=out),
        "randint": lambda out: torch_like.randint(0, 4, (4,), out=out),
        "randperm": lambda out: torch_like.randperm(4, out=out, dtype=torch_like.float32, device=out.device),
        "normal": lambda out: torch_like.normal(0.0, 1.0, (4,), out=out),
        "normal of two": lambda out: torch_like.normal(probabilities(out), probabilities(out), out=out),
        "bernoulli": lambda out: torch_like.bernoulli(probabilities(out), out=out),
    }

    def probabilities(out):
        return torch_like.zeros(4, device=out.device)

    found = {}
    for device in ("cpu", "cuda"):
        for name, factory in factories.items():
            for shape in ((4,), (0,), (2, 2), (6,)):
                out = torch_like.empty(shape, device=device)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    factory(out)
                found[f"{name} {device} {shape}"] = out._version
    return found


def versions(*tensors):
    return [each._version for each in tensors]


def tensors_that_share_a_version(cuda, torch_like):
    first = changed(torch_like, "cuda")
    second, third = first.detach(), first.view(2, 2)
    first.fill_(1)
    second.fill_(1)
    third[0].fill_(1)
    return versions(first, second, third, second.detach(), third[1])


def data_has_its_own_version(cuda, torch_like):
    tensor = changed(torch_like, "cuda").fill_(1)
    data = tensor.data
    found = versions(data)
    data.fill_(1)
    view = data.view(2, 2)
    view.fill_(1)
    return [*found, *versions(tensor, data, view, tensor.data, data.detach())]


def assigned_data_keeps_versions(cuda, torch_like):
    tensor, other = changed(torch_like, "cuda").fill_(1), changed(torch_like, "cuda").fill_(1).fill_(2)
    view = tensor.view(2, 2)
    found = []
    tensor.data = other
    found.append(versions(tensor, view, other))
    other.fill_(1)
    found.append(versions(tensor, view, other))
    tensor.fill_(1)
    found.append(versions(tensor, view, other, tensor.view(2, 2)))
    return found


def set_keeps_the_version(cuda, torch_like):
    tensor, other = changed(torch_like, "cuda"), changed(torch_like, "cuda").fill_(1).fill_(2)
    view, found = tensor.view(2, 2), []
    tensor.set_(other)
    found.append(versions(tensor, view, other))
    other.fill_(1)
    found.append(versions(tensor, view, other))
    tensor.fill_(1)
    found.append(versions(tensor, view, other))
    view.fill_(1)
    found.append(versions(tensor, view, other))
    tensor.view(2, 2).fill_(1)
    return [*found, versions(tensor, view, other)]


def failed_changes_do_not_count(cuda, torch_like):
    tensor = changed(torch_like, "cuda")
    calls = {
        "copy_": lambda: tensor.copy_(torch_like.empty(3, device="cuda")),
        "uniform_": lambda: tensor.uniform_(3, 1),
        "normal_": lambda: tensor.normal_(0, -1),
        "random_": lambda: tensor.random_(3, 1),
        "bernoulli_": lambda: tensor.bernoulli_(3.0),
        "geometric_": lambda: tensor.geometric_(3.0),
        "resize_": lambda: tensor.resize_(-1),
        "set_": lambda: tensor.set_(torch_like.empty(3, device="cuda", dtype=torch_like.int32)),
        "an element": lambda: tensor.__setitem__(0, torch_like.empty(3, device="cuda")),
    }
    return {name: ["error" in outcome(cuda, call), tensor._version] for name, call in calls.items()}


def version_cannot_be_assigned(cuda, torch_like):
    return outcome(cuda, setattr, torch_like.empty(1), "_version", 1)["error"]


def collectives(cuda, torch_like):
    """Collectives that do not need NCCL, which the stand-in does not have."""
    comm = import_module(f"{cuda.__name__}.comm")

    def pair(length):
        return [torch_like.empty(length, device=f"cuda:{index}") for index in range(2)]

    tensor, outs, parts, gathered = changed(torch_like, "cuda").fill_(1), pair(4), pair(2), changed(torch_like, "cuda")
    comm.broadcast(tensor, out=outs)
    comm.scatter(tensor, out=parts)
    comm.gather(pair(2), out=gathered)
    from_host = comm.broadcast(torch_like.empty(4), [0, 1])
    results = {
        "broadcast to tensors": outs,
        "broadcast from the host": from_host,
        "scatter": comm.scatter(tensor, [0, 1]),
        "scatter to tensors": parts,
        "gather": [comm.gather(pair(4), destination=0)],
        "gather to a tensor": [gathered],
        "reduce_add of four": [comm.reduce_add(pair(4) + pair(4))],
        "reduce_add of one": [comm.reduce_add([tensor])],
        "reduce_add_coalesced of one": comm.reduce_add_coalesced([[tensor, gathered]]),
    }
    return {name: versions(*tensors) for name, tensors in results.items()}
