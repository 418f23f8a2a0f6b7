"""Random programs over PyTorch's public names, which run on forebay and on PyTorch over the oracle and must agree.

A program is a seed: `Program(torch, seed)` chooses each step at random, from the names and from what the steps before
have left, so both sides take the same steps as long as they agree. A step's result is what its call returned or raised,
and the statistics of both devices, of pinned memory and what is current after it. Tensors are their shape, strides,
dtype, device and offset: kernels do not run on the oracle, so values are compared on the CPU only.

`python3 dev.py differential --seeds A..B` runs new programs on both sides and prints the first step that differs of
each. tests/data/differential.json.xz has a digest of each step on PyTorch, which test_differential.py compares.
`LIMITS` lists what is not compared, and why.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import lzma
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

from support import on_oracle  # noqa: E402 -- after the path

RECORD = HERE.parent / "data" / "differential.json.xz"
SEEDS, CHUNK = range(100, 300), 10  # recorded, and in one process
DIGEST = 2  # bytes
MEMORY = 1 << 30
PROCESS_SECONDS = 570

# Not compared: by reason, parts of a result. The rows of docs/differences.md are in `outcome`.
LIMITS = {
    "durations, which differ between runs": ("time",),
    "pinned blocks in use, as PyTorch looks at their events only when it allocates": ("active",),
    "the stand-in has no limit per process: its free memory is the machine's": ("mem_get_info",),
}
_DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "complex64"]
_DEVICES = ("cpu", "cuda", "cuda:0", "cuda:1")
_SETTINGS = (
    "max_split_size_mb:{}",
    "garbage_collection_threshold:0.{}",
    "roundup_power2_divisions:{}",
    "expandable_segments:True",
    "expandable_segments:False",
    "max_non_split_rounding_mb:{}",
    "large_segment_size_mb:{}",
    "pinned_use_cuda_host_register:False",
    "per_process_memory_fraction:0.9",
    "throw_on_cudamalloc_oom:True",
    "graph_capture_record_stream_reuse:True",
    "nonsense:{}",
)


class Program:
    """One random program on one side."""

    def __init__(self, torch, seed: int) -> None:
        self.torch, self.cuda, self.chance = torch, torch.cuda, random.Random(seed)
        self.steps = self.chance.randrange(50, 400)
        self.kept = self.chance.choice((3, 10, 30))  # tensors at a time
        names = [name for name in dir(self) if name.startswith("do_")]
        self.names = [*self.chance.sample(names, self.chance.randrange(8, len(names))), "do_factory", "do_drop"]
        self.tensors, self.streams, self.events, self.pools, self.graphs, self.blocks = [], [], [], [], [], []
        self.contexts = []
        self.history = self.chance.choice(("state", "all", "all"))  # a shorter ring corrupts PyTorch's memory
        self.numbers: dict[object, int] = {}  # of pools, in the order in which they appear

    def run(self):
        """Yield each step's name and result."""
        for device in (0, 1):
            self.torch.empty(1, device=f"cuda:{device}")
        for _ in range(self.steps):
            name = self.chance.choice(self.names)
            if name in ("do_enter", "do_leave") and len(self.contexts) > self.chance.randrange(4):
                name = "do_leave"
            self.told = [name]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = outcome(self.cuda, getattr(self, name), self)
            if "DIFFERENTIAL_TRACE" in os.environ:
                print(*self.told, file=sys.stderr, flush=True)
            yield " ".join(self.told), {"result": result, **self.state()}
        while self.contexts:
            self.contexts.pop().__exit__(None, None, None)

    def state(self):
        cuda = self.cuda
        return {
            "current": cuda.current_device(),
            "streams": [cuda.current_stream(device).stream_id for device in (0, 1)],
            "devices": [self.statistics(cuda.memory_stats(device)) for device in (0, 1)],
            "host": self.statistics(cuda.host_memory_stats(), "active"),
        }

    def statistics(self, found, without="time"):
        kept = (item for item in sorted(found.items()) if item[1] and "time" not in item[0] and without not in item[0])
        return {self.plain_key(key): value for key, value in kept}

    def plain_key(self, key):
        prefix, private, rest = key.partition("private_pools.")
        if not private:
            return key
        pool, _, rest = rest.partition(".")
        return f"{prefix}{self.number(tuple(map(int, pool.split('_'))))}.{rest}"

    def number(self, pool):
        return self.numbers.setdefault(tuple(pool), len(self.numbers)) if any(pool) else -1

    # Arguments

    def tell(self, *parts):
        self.told += map(str, parts)

    def dim(self):
        return self.chance.choice((-3, -2, -1, -1, 0, 0, 0, 1, 1, 2, 3))

    def shape(self, largest=64):
        lengths = [self.chance.choice((0, 1, 1, 2, 3, 5, 8)) for _ in range(self.chance.choice((0, 1, 1, 2, 2, 3, 4)))]
        if lengths and self.chance.random() < 0.3:
            lengths[0] = largest
        return lengths

    def device(self):
        return self.chance.choice((*_DEVICES, *_DEVICES, 0, 1, 2, "cuda:7"))

    def dtype(self):
        return getattr(self.torch, self.chance.choice(_DTYPES))

    def one(self, objects):
        """Return one of the objects; None if there is none."""
        at = self.chance.randrange(1 << 16)
        if not objects:
            return None
        self.tell(f"#{at % len(objects)}")
        return objects[at % len(objects)]

    def tensor(self):
        found = self.one(self.tensors)
        if found is None:
            self.tensors.append(found := self.torch.empty(4, 3, device="cuda"))
        return found

    def keep(self, *tensors):
        self.tensors += tensors[:3]
        while len(self.tensors) > self.kept:
            del self.tensors[self.chance.randrange(len(self.tensors))]
        return [self.seen(each) for each in tensors]

    def seen(self, tensor):
        found = [list(tensor.shape), list(tensor.stride()), str(tensor.dtype), str(tensor.device)]
        return [*found, tensor.storage_offset(), tensor.untyped_storage().nbytes(), tensor.is_contiguous()]

    # Steps of tensors.

    def do_factory(self):
        name = self.chance.choice(("empty", "empty", "empty", "zeros", "ones", "full"))
        shape = self.chance.choice((self.shape(), self.shape(1000), [self.chance.randrange(1 << 24)]))
        options = {"dtype": self.dtype(), "device": "cuda" if shape and shape[0] > 1000 else self.device()}
        if self.chance.random() < 0.1:
            options = {"dtype": options["dtype"], "pin_memory": True}
        self.tell(name, shape, *options.values())
        extra = (3,) if name == "full" else ()
        return self.keep(getattr(self.torch, name)(shape, *extra, **options))

    def do_large(self):
        shape = [self.chance.choice((1, 3, 10, 21, 64, 300, 2000)) << 20]
        device = self.chance.choice((0, 1, "cuda"))
        self.tell(shape, device)
        return self.keep(self.torch.empty(shape, dtype=self.torch.uint8, device=device))

    def do_drop(self):
        count = self.chance.choice((1, 1, 2, 5))
        for _ in range(min(count, len(self.tensors))):
            del self.tensors[self.chance.randrange(len(self.tensors))]

    def do_view(self):
        x, c, dim, other = self.tensor(), self.chance, self.dim(), self.dim()
        shape, length = tuple(x.shape), c.randrange(-1, 6)
        options = {
            "transpose": (dim, other), "swapaxes": (dim, other), "squeeze": c.choice(((), (dim,), ((dim, other),))),
            "unsqueeze": (dim,), "narrow": (dim, other, length), "select": (dim, length), "split": (length, dim),
            "chunk": (length, dim), "unbind": c.choice(((), (dim,))), "t": (), "movedim": (dim, other),
            "flatten": c.choice(((), (dim,), (dim, other))), "unflatten": (dim, (-1, c.choice((1, 2, 3)))),
            "permute": (c.sample(range(len(shape)), len(shape)) if c.random() < 0.8 else [dim, other],),
            "expand": ([c.choice((-1, 2)), *(c.choice((length, -1, size)) for size in shape)][c.randrange(2) :],),
            "view": c.choice((([-1],), ([-1, *shape[1:]],), ([*shape, 1],), ([2, -1],), (self.dtype(),))),
            "reshape": c.choice((([-1],), ([*shape[::-1]],), ([1, *shape],), ([3, -1],))),
            "diagonal": (length - 2, dim, other), "unfold": (dim, length, c.choice((1, 1, 2, 0))),
            "as_strided": (self.shape(4), [c.randrange(4) for _ in range(c.randrange(4))], c.randrange(3)),
            "T": None, "mT": None, "detach": (), "view_as": (self.tensor(),), "expand_as": (self.tensor(),),
        }  # fmt: skip
        name = c.choice(list(options))
        self.tell(name, shape, x.stride(), options[name] if name not in ("view_as", "expand_as") else "")
        found = getattr(x, name) if options[name] is None else getattr(x, name)(*options[name])
        return self.keep(*found) if isinstance(found, tuple) else self.keep(found)

    def do_index(self):
        x, c = self.tensor(), self.chance
        some = lambda: c.choice((None, 0, 1, 2, 5, -1, -2, -9))  # noqa: E731
        part = lambda: c.choice((None, ..., some() or 0, slice(some(), some(), c.choice((None, 1, 2, 3))), slice(None)))  # noqa: E731
        index = part() if c.random() < 0.3 else tuple(part() for _ in range(c.randrange(4)))
        self.tell(tuple(x.shape), x.stride(), index)
        return self.keep(x[index])

    def do_copy(self):
        target, source = self.tensor(), self.tensor()
        if self.chance.random() < 0.6:
            source = self.torch.empty(tuple(target.shape), dtype=self.dtype(), device=self.chance.choice(_DEVICES))
        non_blocking = self.chance.random() < 0.3
        if 0 in target.stride() or target.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
            return None  # such copies have no error here: docs/differences.md
        self.tell(self.seen(target), self.seen(source), non_blocking)
        return self.seen(target.copy_(source, non_blocking=non_blocking))

    def do_convert(self):
        x, c = self.tensor(), self.chance
        options = {"device": self.device()} if c.random() < 0.7 else {}
        options |= {"dtype": self.dtype()} if c.random() < 0.4 else {}
        options |= {"non_blocking": True} if c.random() < 0.3 else {}
        options |= {"copy": True} if c.random() < 0.2 else {}
        self.tell(self.seen(x), options)
        return self.keep(x.to(**options))

    def do_duplicate(self):
        x = self.tensor()
        name = self.chance.choice(("clone", "contiguous", "cpu", "cuda", "deepcopy", "empty_like", "new_empty", "copy"))
        self.tell(name, self.seen(x))
        if name in ("deepcopy", "copy"):
            return self.keep(getattr(copy, name)(x))
        if name == "empty_like":
            return self.keep(self.torch.empty_like(x))
        return self.keep(x.new_empty(3, 4) if name == "new_empty" else getattr(x, name)())

    def do_fill(self):
        x, value = self.tensor(), self.chance.choice((0, 1, 2.5))
        self.tell(self.seen(x), value)
        return self.seen(x.fill_(value) if self.chance.random() < 0.7 else x.zero_())

    def do_read(self):
        x = self.tensor()
        name = self.chance.choice(("item", "tolist", "format", "bool", "len", "float", "numpy", "repr"))
        self.tell(name, self.seen(x))
        if name == "format" and x.shape and x.is_cuda:
            return None  # PyTorch computes the text on the device: docs/differences.md
        calls = {"format": format, "bool": bool, "len": len, "float": float, "repr": lambda _: None}
        found = calls[name](x) if name in calls else getattr(x, name)()
        return str(found) if x.device.type == "cpu" and name in ("len", "item") and x.is_pinned() is None else None

    def do_resize(self):
        x, shape = self.tensor(), self.shape()
        if not x.is_cuda:
            return None  # pinned storages are not resizable here: docs/differences.md
        self.tell(self.seen(x), shape)
        return self.seen(x.resize_(shape))

    def do_pin(self):
        x = self.tensor()
        self.tell(self.seen(x))
        return self.keep(x.pin_memory()) if self.chance.random() < 0.5 else x.is_pinned()

    def do_record_stream(self):
        x, stream = self.tensor(), self.one(self.streams)
        self.tell(self.seen(x))
        if stream is not None and stream.device == x.device:
            x.record_stream(stream)

    # Steps of devices, streams, events.

    def do_set_device(self):
        device = self.device()
        self.tell(device)
        self.cuda.set_device(device)

    def do_stream(self):
        device, kind = self.chance.choice((0, 1, None)), self.chance.choice(("new", "default", "current"))
        self.tell(kind, device)
        calls = {"new": self.cuda.Stream, "default": self.cuda.default_stream, "current": self.cuda.current_stream}
        self.streams.append(found := calls[kind](device))
        return [str(found.device), found.stream_id, found.priority]

    def do_set_stream(self):
        self.cuda.set_stream(self.one(self.streams))

    def do_wait(self):
        one, other = self.one(self.streams), self.one(self.streams)
        if one is not None:
            one.wait_stream(other)

    def do_event(self):
        stream, event = self.one(self.streams), self.cuda.Event()
        if stream is not None:
            event.record(stream)
            self.events.append(event)
            return event.query() in (True, False)
        return None

    def do_synchronize(self):
        device = self.chance.choice((None, 0, 1, 2))
        self.tell(device)
        self.cuda.synchronize(device)

    # Steps of contexts.

    def do_enter(self):
        name = self.chance.choice(("device", "stream", "cuda.stream", "pool", "torch.device"))
        device = self.chance.choice((0, 1))
        stream, pool = self.one(self.streams), self.one(self.pools)
        self.tell(name, device)
        if name == "stream":
            context = stream or self.cuda.default_stream(device)
        elif name == "pool":
            if pool is None:
                self.pools.append(pool := self.cuda.MemPool())
            context = self.cuda.use_mem_pool(pool, device)
        elif name == "torch.device":
            context = self.torch.device("cuda", device)
        else:
            context = self.cuda.device(device) if name == "device" else self.cuda.stream(stream)
        context.__enter__()
        self.contexts.append(context)

    def do_leave(self):
        if self.contexts:
            self.contexts.pop().__exit__(None, None, None)

    # Steps of memory.

    def do_pool(self):
        options = {name: True for name in ("use_on_oom", "no_split") if self.chance.random() < 0.3}
        self.tell(options)
        self.pools.append(found := self.cuda.MemPool(**options))
        return found.use_count()

    def do_drop_pool(self):
        if self.pools and not self.contexts:
            del self.pools[self.chance.randrange(len(self.pools))]

    def do_pool_query(self):
        pool = self.one(self.pools)
        return None if pool is None else [pool.use_count(), self.segments(pool.snapshot())]

    def do_settings(self):
        text = self.chance.choice(_SETTINGS).format(self.chance.choice((1, 4, 8, 20, 32, 64, 200)))
        self.tell(text)
        self.torch._C._accelerator_setAllocatorSettings(text)

    def do_fraction(self):
        fraction, device = self.chance.choice((0.2, 0.5, 0.9, 1.0, 1.5, -1)), self.chance.choice((None, 0, 1, 2))
        self.tell(fraction, device)
        self.cuda.set_per_process_memory_fraction(fraction, device)
        return self.cuda.get_per_process_memory_fraction(device)

    def do_caching(self):
        size, device = self.chance.choice((0, 1, 512, 3 << 20, 30 << 20, 1 << 40, -1)), self.chance.choice((None, 0, 1))
        self.tell(size, device)
        self.blocks.append(self.cuda.caching_allocator_alloc(size, device))
        return bool(self.blocks[-1])

    def do_free(self):
        if self.blocks:
            self.cuda.caching_allocator_delete(self.blocks.pop(self.chance.randrange(len(self.blocks))))

    def do_memory(self):
        names = ("empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats", "memory_allocated",
                 "max_memory_reserved", "reset_peak_host_memory_stats", "ipc_collect")  # fmt: skip
        name, device = self.chance.choice(names), self.chance.choice((None, 0, 1))
        self.tell(name, device)
        found = getattr(self.cuda, name)
        return found() if name in ("empty_cache", "reset_peak_host_memory_stats", "ipc_collect") else found(device)

    def do_summary(self):
        device, short = self.chance.choice((0, 1)), self.chance.random() < 0.5
        return self.cuda.memory_summary(device, short)

    def do_accelerator(self):
        names = ("memory_stats", "memory_allocated", "max_memory_allocated", "empty_cache", "empty_host_cache",
                 "reset_peak_memory_stats", "current_device_index", "device_count")  # fmt: skip
        name, module = self.chance.choice(names), self.torch.accelerator
        self.tell(name)
        found = getattr(module if hasattr(module, name) else module.memory, name)()
        return self.statistics(found) if isinstance(found, dict) else found

    def do_history(self):
        enabled = self.chance.choice((None, self.history, self.history))
        self.tell(enabled)
        self.cuda.memory._record_memory_history(enabled, stacks="python")

    def do_snapshot(self):
        kind = self.chance.choice(("_snapshot", "memory_snapshot"))
        self.tell(kind)
        if kind == "memory_snapshot":
            return self.segments(self.cuda.memory_snapshot())
        found = self.cuda.memory._snapshot()
        traces = [
            [[entry["action"], entry["size"], self.number(entry.get("pool_id", (0, 0)))] for entry in trace]
            for trace in found["device_traces"]
        ]
        return [self.segments(found["segments"]), traces, found["allocator_settings"]]

    def segments(self, found):
        keys = [
            "device",
            "total_size",
            "allocated_size",
            "active_size",
            "requested_size",
            "segment_type",
            "is_expandable",
        ]
        return sorted(
            [
                *(segment[key] for key in keys),
                self.number(segment["segment_pool_id"]),
                [[block["size"], block["requested_size"], block["state"]] for block in segment["blocks"]],
            ]
            for segment in found
        )

    def do_graph(self):
        shape, device = self.shape(1000), self.chance.choice((0, 1))
        graph, pool = self.cuda.CUDAGraph(), self.one(self.pools)
        self.tell(shape, device)
        if self.contexts:
            return None
        with self.cuda.device(device), self.cuda.graph(graph, pool=pool.id if pool is not None else None):
            made = self.torch.zeros(shape, device="cuda")
        self.graphs.append(graph)
        graph.replay()
        return self.keep(made)

    def do_drop_graph(self):
        if self.graphs:
            graph = self.graphs.pop(self.chance.randrange(len(self.graphs)))
            if self.chance.random() < 0.5:
                graph.reset()

    def do_random(self):
        seed, device = self.chance.randrange(1 << 40), self.chance.choice((0, 1))
        self.cuda.manual_seed_all(seed)
        return [self.cuda.initial_seed(), self.cuda.get_rng_state(device).tolist()]


def outcome(cuda, call, program):
    """Return the result of a step. Texts of out-of-memory errors are forebay's own: docs/differences.md."""
    try:
        return {"value": call()}
    except Exception as error:  # noqa: BLE001 -- the error is the result
        name = on_oracle._public_name(cuda, type(error))
        unlike = name == "OutOfMemoryError" or (name == "TypeError" and "combination of arguments" in str(error))
        text = re.sub(r"(Allocator not initialized for device).*", r"\1", str(error).split("\n")[0])  # prints an index
        return {"error": name, "message": "" if unlike else text}
    finally:
        program.told.append("")


def results(side: str, seed: int) -> list[list[object]]:
    """Run a program in this process. Return the name and the result of each step."""
    if side == "pytorch":
        import torch

        return [[name, on_oracle.comparable(result)] for name, result in Program(torch, seed).run()]
    import forebay
    import forebay._C
    import forebay.accelerator
    import forebay.cuda
    from forebay.runtime.devices import open_device

    found = []
    with forebay.emulate("cuda", count=2, profile=on_oracle.PROFILE, memory=MEMORY):
        for name, result in Program(on_oracle.TorchLike(), seed).run():
            found.append([name, on_oracle.comparable(result)])
            for opened in open_device.open_devices("cuda").devices:  # the stand-in executes at once
                opened.allocator.synchronize()
        return found


def digest(result: object) -> bytes:
    return hashlib.blake2b(json.dumps(result, sort_keys=True).encode(), digest_size=DIGEST).digest()


def _run(side: str, what: str, *seeds: str) -> None:
    """Run programs, each in a fork, and print {seed: results or digests}."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    __import__("torch" if side == "pytorch" else "forebay.cuda")
    found = {}
    for seed in seeds:

        def work(seed=seed):
            each = results(side, int(seed))
            return each if what == "results" else base64.b64encode(b"".join(digest(step[1]) for step in each)).decode()

        kind, value = on_oracle._fork(work)
        found[seed] = {"failed": value} if kind == "failed" else value
    json.dump(found, out)
    out.close()


def run_programs(side: str, what: str, seeds) -> dict[int, object]:
    """Return "results" or "digests" of programs by seed, from a new process."""
    interpreter = [sys.executable] if side == "forebay" else ["bash", str(on_oracle.ORACLE)]
    settings = {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_TOTAL_BYTES": str(MEMORY), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*interpreter, str(HERE / "differential.py"), "run", side, what, *map(str, seeds)], capture_output=True,
        encoding="utf-8", check=False, timeout=PROCESS_SECONDS, env=os.environ | settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {int(seed): found for seed, found in json.loads(done.stdout).items()}


def recorded() -> dict[int, str]:
    return {int(seed): text for seed, text in json.loads(lzma.decompress(RECORD.read_bytes())).items()}


def first_difference(ours, theirs) -> str:
    """Return a description of the first step that differs; empty if none does."""
    if isinstance(theirs, dict):
        return ""  # it exceeded the time limit, or PyTorch's process died
    if isinstance(ours, dict):
        return str(ours)[-600:]
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one[1] != other[1]:
            lines = [f"step {at}: {one[0]}"]
            return "\n".join([*lines, *_differences(one[1], other[1], "")])
    return "" if len(ours) == len(theirs) else f"{len(ours)} steps, PyTorch {len(theirs)}"


def _differences(one, other, path):
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _differences(one.get(key), other.get(key), f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{path}/{at}")
    elif one != other:
        yield f"  {path[1:]}: {str(one)[:300]} instead of {str(other)[:300]}"


def main(arguments: list[str]) -> int:
    """Run `run SIDE WHAT SEED…`, `record`, or `compare A..B`. Return the exit status."""
    if arguments[:1] == ["run"]:
        _run(*arguments[1:])
        return 0
    if why := on_oracle.why_no_oracle():
        sys.exit(why)
    if arguments[:1] == ["record"]:
        kept = recorded() if RECORD.exists() else {}
        missing = [seed for seed in SEEDS if seed not in kept]
        for at in range(0, len(missing), CHUNK):  # writes what it has, as it takes minutes
            found = run_programs("pytorch", "digests", missing[at : at + CHUNK])
            kept |= {seed: text for seed, text in found.items() if isinstance(text, str)}  # else it took too long
            RECORD.write_bytes(lzma.compress(json.dumps(kept).encode(), preset=9))
        return 0
    first, _, last = arguments[1].partition("..")
    different = steps = 0
    seeds = range(int(first), int(last or first) + 1)
    ours, theirs = (run_programs(side, "results", seeds) for side in ("forebay", "pytorch"))
    for seed in seeds:
        steps += len(theirs[seed]) if isinstance(theirs[seed], list) else 0
        if found := first_difference(ours[seed], theirs[seed]):
            different += 1
            print(f"seed {seed}, {found}")
    print(f"{len(seeds)} programs, {steps} steps: {different} programs differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
