"""Orders of dimensions in memory: formats of factories, copies and conversions, sizes that are changed in place."""

from importlib import import_module

import numpy as np
from support.on_oracle import outcome

_IMAGE = (2, 3, 4, 5)


def strided(torch_like, size, strides):
    return torch_like.empty(0).set_(torch_like.empty(100).untyped_storage(), 0, size, strides)


def names(cuda, torch_like):
    t = torch_like
    formats = (t.channels_last, t.channels_last_3d, t.contiguous_format, t.preserve_format)
    return [repr(each).rpartition(".")[2] for each in formats]


def factories(cuda, torch_like):
    t, last = torch_like, torch_like.channels_last
    shapes = [_IMAGE, (2, 1, 4, 4), (2, 3, 1, 1), (0, 3, 4, 4), (2, 3), (1, 2, 3, 4, 5)]
    found = [outcome(cuda, lambda s=shape: t.empty(s, memory_format=last).stride()) for shape in shapes]
    found += [outcome(cuda, lambda s=shape: t.empty(s, memory_format=t.channels_last_3d).stride()) for shape in shapes]
    found += [outcome(cuda, t.empty, 2, memory_format=t.preserve_format), outcome(cuda, t.zeros, 2, memory_format=last)]
    found.append(list(t.empty(_IMAGE, device="cuda", memory_format=last).stride()))
    found.append(t.empty(_IMAGE, memory_format=last, pin_memory=True).is_pinned())
    return found


def factories_like_another_tensor(cuda, torch_like):
    t, last = torch_like, torch_like.channels_last
    plain, other = t.empty(_IMAGE, device="cuda"), t.empty(_IMAGE, device="cuda", memory_format=last)
    found = [t.empty_like(other).stride(), t.empty_like(other, memory_format=t.contiguous_format).stride()]
    found += [make(plain, memory_format=last).stride() for make in (t.empty_like, t.zeros_like, t.rand_like)]
    found.append(t.empty_like(plain, device="cpu", dtype=t.float16, memory_format=last).stride())
    return [list(strides) for strides in found] + [outcome(cuda, t.empty_like, plain[0], memory_format=last)]


def which_tensors_are_contiguous(cuda, torch_like):
    t = torch_like
    tensors = [
        t.empty(_IMAGE),
        t.empty(_IMAGE, memory_format=t.channels_last),
        t.empty(_IMAGE, memory_format=t.channels_last)[:, :, :2],
        t.empty(2, 1, 4, 4),
        t.empty(2, 3, 1, 1),
        t.empty(0, 3, 4, 4),
        t.empty(0, 3, 4, 4, memory_format=t.channels_last),
        strided(t, (2, 3, 1, 4), (12, 1, 12, 3)),
        strided(t, (2, 1, 1, 4), (4, 7, 12, 1)),
        t.empty(3),
        t.empty(1, 2, 3, 4, 5, memory_format=t.channels_last_3d),
    ]
    formats = (t.contiguous_format, t.preserve_format, t.channels_last, t.channels_last_3d)
    return [[tensor.is_contiguous(memory_format=each) for each in formats] for tensor in tensors] + [
        outcome(cuda, lambda: tensors[0].is_contiguous(memory_format=3)),
    ]


def contiguous_copies(cuda, torch_like):
    t, last = torch_like, torch_like.channels_last
    plain, other = t.empty(_IMAGE, device="cuda"), t.empty(_IMAGE, device="cuda", memory_format=last)
    return [
        list(plain.contiguous(memory_format=last).stride()),
        list(other.contiguous().stride()),
        other.contiguous(memory_format=last) is other,
        plain.contiguous(memory_format=t.preserve_format) is plain,
        outcome(cuda, lambda: other.contiguous(memory_format=t.preserve_format)),
        outcome(cuda, lambda: plain[0].contiguous(memory_format=last)),
        outcome(cuda, lambda: plain.contiguous(memory_format="channels_last")),
    ]


def clones(cuda, torch_like):
    t, last = torch_like, torch_like.channels_last
    plain, other = t.empty(_IMAGE, device="cuda"), t.empty(_IMAGE, device="cuda", memory_format=last)
    tensors = [other, t.empty(4, 6).transpose(0, 1), other[:, :, ::2], t.empty(4, 1).expand(4, 3)]
    return [
        *(list(tensor.clone().stride()) for tensor in tensors),
        list(plain.clone(memory_format=last).stride()),
        list(other.clone(memory_format=t.contiguous_format).stride()),
        outcome(cuda, lambda: plain[0].clone(memory_format=last)),
    ]


def conversions(cuda, torch_like):
    t, last = torch_like, torch_like.channels_last
    plain, other = t.empty(_IMAGE, device="cuda"), t.empty(_IMAGE, device="cuda", memory_format=last)
    wide = t.empty(4, 6).transpose(0, 1)
    made = [
        plain.to(memory_format=last),
        plain.to("cpu", memory_format=last),
        plain.to(t.float16, memory_format=last),
        plain.cuda(1, memory_format=last),
        plain.cpu(memory_format=last),
        other.to("cpu"),
        other.to("cuda:1"),
        other.to(t.float16),
        other.to(copy=True),
        other.to("cpu", non_blocking=True),
        other.to("cpu", t.float64),
        other.to(memory_format=t.contiguous_format),
        other.cpu(memory_format=t.contiguous_format),
        wide.to(t.float16),
        wide.to("cuda"),
        wide.to(memory_format=t.contiguous_format),
        strided(t, (2, 3, 1, 4), (12, 1, 12, 3)).to(memory_format=last),
    ]
    return [[list(each.stride()), str(each.device), each.is_pinned()] for each in made] + [
        other.to(memory_format=last) is other,
        other.to(memory_format=t.preserve_format) is other,
        other.to(memory_format=t.contiguous_format) is other,
        plain.to(memory_format=t.contiguous_format) is plain,
        other.cuda(memory_format=last) is other,
        wide.to(memory_format=t.contiguous_format) is wide,
        outcome(cuda, lambda: plain[0].to(memory_format=last)),
    ]


def sizes_changed_in_place(cuda, torch_like):
    t = torch_like
    tensor, found = t.empty(100, device="cuda"), []
    first = tensor.data_ptr()
    sizes = [(50,), (100,), (2, 60), ((3, 4),), (t.Size([2]),), ((),), (0,), (5, 0)]
    for size in sizes:
        same = tensor.resize_(*size) is tensor
        place = tensor.data_ptr() == first
        found.append([same, place, list(tensor.shape), list(tensor.stride()), tensor.untyped_storage().nbytes()])
    view = t.empty(10)[4:]
    found.append([view.resize_(20).storage_offset(), view.untyped_storage().nbytes()])
    wide = t.empty(4, 6).transpose(0, 1)
    found += [list(wide.resize_(6, 4).stride()), list(wide.resize_(4, 6).stride())]
    found.append(list(tensor.resize_(1, 4, 2, 2, memory_format=t.channels_last).stride()))
    found.append(list(tensor.resize_as_(t.empty(2, 3)).shape))
    image = t.empty(_IMAGE, memory_format=t.channels_last)
    for each in (image, image.contiguous(), image[0]):
        found.append(list(t.empty(0).resize_as_(each, memory_format=t.preserve_format).stride()))
    found.append(t.empty(4, device="cuda").resize_(6).untyped_storage().nbytes())
    return found


def wrong_sizes(cuda, torch_like):
    t = torch_like
    tensor = t.empty(100, device="cuda")
    return [
        *(outcome(cuda, tensor.resize_, *size) for size in [(-1,), (2, -3), ("a",), (2.5,), (None,)]),
        outcome(cuda, lambda: tensor.resize_(3, memory_format=t.channels_last)),
        outcome(cuda, lambda: tensor.resize_(3, memory_format=t.preserve_format)),
        outcome(cuda, tensor.resize_as_, 3),
        *(outcome(cuda, t.empty(3).resize_, *size) for size in [(2**62, 4), (2**40, 2**40), (3, 2**61)]),
        outcome(cuda, t.from_numpy(np.zeros(4, np.float32)).resize_, 40),
        outcome(cuda, lambda: t.from_numpy(np.zeros(4, np.float32)).resize_(2).numel()),
        list(tensor.shape),
    ]


def scattered_and_gathered_tensors(cuda, torch_like):
    t, comm = torch_like, import_module(f"{cuda.__name__}.comm")
    image = t.empty(_IMAGE, memory_format=t.channels_last)
    parts = [image.cuda(0), image.cuda(1)]
    turned = [each.transpose(2, 3) for each in parts]
    mixed = [parts[0], parts[1].contiguous()]
    found = [
        *comm.scatter(parts[0], [0, 1]),
        *comm.scatter(image, [0, 1]),
        *comm.scatter(image, [0, 1], dim=1),
    ]
    found += [comm.gather(each) for each in (parts, turned, mixed)]
    found += [comm.gather(parts, dim=1), comm.gather(parts, destination="cpu")]
    return [[list(each.stride()), str(each.device)] for each in found]


def views_of_the_shape_of_another_tensor(cuda, torch_like):
    t = torch_like
    tensor, square = t.empty(4, device="cuda"), t.empty(2, 2)
    return [
        list(tensor.view_as(square).shape),
        tensor.view_as(square).data_ptr() == tensor.data_ptr(),
        list(tensor.reshape_as(square).shape),
        list(tensor.expand_as(t.empty(3, 4)).stride()),
        *(outcome(cuda, getattr(tensor, name), 3) for name in ("view_as", "reshape_as", "expand_as")),
        outcome(cuda, tensor.view_as, t.empty(3)),
    ]


def parts_of_a_storage(cuda, torch_like):
    t = torch_like
    found = []
    for device in ("cpu", "cuda:1"):
        storage = t.empty(8, dtype=t.uint8, device=device).untyped_storage()
        for part in (slice(2, 5), slice(None), slice(-3, None), slice(5, 2), slice(2, 100)):
            made = storage[part]
            start = made.data_ptr() - storage.data_ptr() if made.nbytes() else None
            found.append([type(made).__name__, made.nbytes(), start, str(made.device), made.resizable()])
        found += [outcome(cuda, storage.__getitem__, each) for each in (slice(None, None, 2), slice(None, None, -1))]
        found += [
            outcome(cuda, storage.__getitem__, slice("a", None)),
            outcome(cuda, lambda s=storage: s[2:].resize_(3)),
        ]
    return found


def a_part_of_pinned_memory(cuda, torch_like):
    t = torch_like
    pinned = t.empty(10).pin_memory()
    made = t.tensor(()).set_(pinned.untyped_storage()[8:], 0, (5,), (1,))
    kept = [made.is_pinned(), made.data_ptr() - pinned.data_ptr(), made.untyped_storage().nbytes()]
    memory = t.empty(512, dtype=t.uint8, device="cuda").untyped_storage()[256:]  # keeps the memory that it is a part of
    found = cuda.memory_allocated()
    del memory
    return [*kept, found, cuda.memory_allocated()]
