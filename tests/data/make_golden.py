"""Record the golden traces of tests/data/golden with PyTorch's allocator over a stand-in CUDA runtime.

    python3 make_golden.py ORACLE [NAME...]

ORACLE is the folder of the stand-in's run.sh and replay.py, NAME a trace (all by default). The format is that of
replay.py: a header, then one line per operation, {"i", "op", "result", "device_used", "stats" or "stats_delta",
"segments"}, or {"i", "op"} if the operation was not recorded, with three additions:

* if the header's `config` has "stats_every": n or "segments_every": m, statistics and `device_used` are recorded after
  every n-th operation, segments after every m-th;
* `stats_gone` lists statistics that no longer exist ("stats:num_ooms");
* statistics of pinned memory are `host_stats` and `host_stats_delta`, without times; traces of pinned memory contain
  nothing else.

Operations besides those of replay.py:

  pool_new pool [use_on_oom] [no_split] [device]     pool_enter pool       pool_leave pool
      entering is use_mem_pool and nests; `alloc` with "pool" enters the pool for one allocation
  capture_begin graph stream [pool] [device]         capture_end graph     graph_del graph
      "pool" is a pool or an earlier graph; allocations on the stream until the end belong to the graph
  host_alloc id size     host_free id     host_record id stream     host_empty_cache     host_reset_peak
  host_reset_accumulated
      pinned memory: the result {"block": k} identifies the k-th block allocated from the system; host_record is an
      asynchronous copy on the stream
  trace [device] [keys]    `keys` are additional keys of history entries to include
  fail_next n [device]     failures count over all devices: only one device may allocate until they have occurred
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import subprocess
import sys
from pathlib import Path

MIB = 1 << 20
OUTPUT = Path(__file__).parent / "golden"
SETTINGS = {
    "default": "",
    "large40": "large_segment_size_mb:40",
    "large12": "large_segment_size_mb:12,max_split_size_mb:20",
    "rounding64": "max_split_size_mb:48,max_non_split_rounding_mb:64",
    "rounding_expand": "expandable_segments:True,max_split_size_mb:32,max_non_split_rounding_mb:100",
    "fraction": "per_process_memory_fraction:0.5",
    "throw": "per_process_memory_fraction:0.6,throw_on_cudamalloc_oom:True",
    "throw_expand": "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,expandable_segments:True",
    "throw_gc": "per_process_memory_fraction:0.7,throw_on_cudamalloc_oom:True,garbage_collection_threshold:0.5",
    "expand_large": "expandable_segments:True,large_segment_size_mb:40",
    "expand_gc_maxsplit": "expandable_segments:True,garbage_collection_threshold:0.5,max_split_size_mb:64",
    "expand_reserve": "expandable_segments:True,expandable_segments_reserve:0.15",
    "expand_round": "expandable_segments:True,roundup_power2_divisions:[16:4,64:8,>:2],max_split_size_mb:100",
    "expand_fraction": "expandable_segments:True,per_process_memory_fraction:0.4",
    "gc_maxsplit_round": "garbage_collection_threshold:0.7,max_split_size_mb:100,"
    "roundup_power2_divisions:[1:2,16:4,>:8]",
}
CHANGES = [*SETTINGS.values(), "expandable_segments:False", "expandable_segments:True", "max_split_size_mb:25"]


def size_of(rng):
    kind = rng.random()
    if kind < 0.3:
        return rng.randint(1, 4096)
    if kind < 0.5:
        return rng.randint(4096, MIB)
    if kind < 0.75:
        return rng.randint(MIB, 12 * MIB)
    if kind < 0.96:
        return rng.randint(10 * MIB, 80 * MIB)
    edges = [512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 12 * MIB, 20 * MIB, 32 * MIB, 40 * MIB, 64 * MIB]
    return rng.choice([*edges, 200 * MIB, 300 * MIB, 500 * MIB, 900 * MIB])


def mixed(name, conf="", n=600, *, devices=1, pools=False, graphs=False, changes=(), total_mb=1024):
    """Yield random operations; the name is the seed."""
    rng = random.Random(name)
    config = {"op": "config", "conf": conf, "total_mb": total_mb, "context_mb": 16, "devices": devices, "streams": 4}
    yield config | {"stats_every": 3, "segments_every": 12}
    weights = {"alloc": 46, "free": 33, "record_stream": 6, "empty_cache": 2, "synchronize": 1, "set_fraction": 1}
    weights |= {"reset_peak": 0.7, "reset_accumulated": 0.7, "set_other_used": 0.7, "mem_get_info": 0.4, "summary": 0.3}
    if devices == 1:  # the effect of one device on held work of another cannot be replayed on one device
        weights |= {"hold": 1.6, "release": 2, "fail_next": 1}
    if pools:
        weights |= {"pool_new": 2, "pool_del": 1.5, "pool_enter": 5, "pool_leave": 5}
    if graphs:
        weights |= {"capture_begin": 2, "capture_end": 3, "graph_del": 1}
    if changes:
        weights["set_allocator_settings"] = 2
    live, known, entered, created, capturing, finished = [], [], [], 0, None, []
    for i in range(n):
        op = rng.choices([*weights], [*weights.values()])[0]
        device = rng.randrange(devices)
        place = {"device": device} if devices > 1 else {}
        if capturing and op in {
            "empty_cache",
            "synchronize",
            "set_fraction",
            "hold",
            "release",
            "set_allocator_settings",
        }:
            op = "alloc"
        match op:
            case "free" | "record_stream" if not live:
                continue
            case "alloc":
                stream = capturing[1] if capturing and rng.random() < 0.8 else rng.choice((0, 0, 1, 2, 3))
                live.append((i, device))
                yield {"op": op, "id": i, "size": size_of(rng), "stream": stream} | place
            case "free":
                yield {"op": op, "id": live.pop(rng.randrange(len(live)))[0]}
            case "record_stream":
                block, device = rng.choice(live)
                yield {"op": op, "id": block, "stream": rng.randrange(4)} | ({"device": device} if devices > 1 else {})
            case "hold":
                yield {"op": op, "level": rng.choice((1, 1, 2))}
            case "release":
                yield {"op": op} | ({"stream": rng.randrange(4)} if rng.random() < 0.6 else {})
            case "set_fraction":
                yield {"op": op, "fraction": rng.choice((0.3, 0.5, 0.7, 0.9, 1.0))} | place
            case "fail_next":
                yield {"op": op, "n": rng.choice((1, 1, 2))}
            case "set_other_used":
                yield {"op": op, "bytes": rng.choice((0, 16, 100, 400)) * MIB} | place
            case "set_allocator_settings":
                yield {"op": op, "conf": rng.choice(changes)}
            case "summary":
                yield {"op": op, "abbreviated": rng.random() < 0.5} | place
            case "empty_cache":
                yield {"op": op}
            case "pool_new":
                created += 1
                known.append(f"p{created}")
                options = {key: True for key in ("use_on_oom", "no_split") if rng.random() < 0.35}
                yield {"op": op, "pool": known[-1]} | options
            case "pool_del" if [pool for pool in known if pool not in entered]:
                known.remove(pool := rng.choice([pool for pool in known if pool not in entered]))
                yield {"op": op, "pool": pool}
            case "pool_enter" if [pool for pool in known if pool not in entered] and len(entered) < 3:
                entered.append(rng.choice([pool for pool in known if pool not in entered]))
                yield {"op": op, "pool": entered[-1]}
            case "pool_leave" if entered:
                yield {"op": op, "pool": entered.pop()}
            case "capture_begin" if not capturing:
                created += 1
                capturing = f"g{created}", rng.randrange(1, 4)
                of = {"pool": rng.choice(finished)} if finished and rng.random() < 0.4 else {}
                yield {"op": op, "graph": capturing[0], "stream": capturing[1]} | of
            case "capture_end" if capturing:
                finished.append(capturing[0])
                capturing = None
                yield {"op": op, "graph": finished[-1]}
            case "graph_del" if finished:
                yield {"op": op, "graph": finished.pop(rng.randrange(len(finished)))}
            case "synchronize" | "reset_peak" | "reset_accumulated" | "mem_get_info":
                yield {"op": op} | place
    yield {"op": "snapshot"} if not capturing else {"op": "capture_end", "graph": capturing[0]}


def pinned(name, conf="", n=300):
    """Yield operations on pinned memory: rounded sizes, blocks in use by copies, held events."""
    rng = random.Random(name)
    yield {"op": "config", "conf": conf, "total_mb": 64, "streams": 4, "pinned": True}
    live = []
    for i in range(n):
        kind = rng.random()
        if kind < 0.5 or not live:
            size = rng.choice((rng.randint(0, 9000), rng.randint(1, MIB), rng.randint(MIB, 9 * MIB), 4096, MIB))
            live.append(i)
            yield {"op": "host_alloc", "id": i, "size": size}
        elif kind < 0.78:
            yield {"op": "host_free", "id": live.pop(rng.randrange(len(live)))}
        elif kind < 0.9:
            yield {"op": "host_record", "id": rng.choice(live), "stream": rng.randrange(4)}
        else:
            held = {"op": "release"} | ({"stream": rng.randrange(4)} if rng.random() < 0.5 else {})
            others = ("host_empty_cache", "host_reset_peak", "host_reset_accumulated")
            yield rng.choice(({"op": "hold"}, held, {"op": rng.choice(others)}))


def scripted(name):
    """Yield a scene of golden_scenes.jsonl: the lines from the config with this name to the next config."""
    wanted = False
    for line in (Path(__file__).parent / "golden_scenes.jsonl").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        operation = json.loads(line)
        if operation["op"] == "config":
            wanted = operation.pop("name") == name
        if wanted:
            yield operation


def traces():
    """Return a generator function of operations for each trace name."""
    found = {f"mixed_{of}": lambda n, conf=conf: mixed(n, conf) for of, conf in SETTINGS.items()}
    found |= {f"changes_{k}": lambda n: mixed(n, changes=CHANGES) for k in (1, 2, 3)}
    found |= {
        "devices": lambda n: mixed(n, devices=2),
        "pools_mixed": lambda n: mixed(n, pools=True),
        "pools_maxsplit": lambda n: mixed(n, "max_split_size_mb:40", pools=True),
        "pools_expand": lambda n: mixed(n, "expandable_segments:True", pools=True),
        "pools_gc": lambda n: mixed(n, "garbage_collection_threshold:0.5,per_process_memory_fraction:0.6", pools=True),
        "capture_mixed": lambda n: mixed(n, graphs=True),
        "capture_gc": lambda n: mixed(n, "garbage_collection_threshold:0.5,max_split_size_mb:40", graphs=True),
        "capture_expand": lambda n: mixed(n, "expandable_segments:True", 500, graphs=True),
        "pinned_mixed": pinned,
        "pinned_limits": lambda n: pinned(n, "pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:4"),
        "pinned_round": lambda n: pinned(n, "pinned_max_round_threshold_mb:2"),
        "pinned_register": lambda n: pinned(n, "pinned_use_cuda_host_register:True,pinned_num_register_threads:2"),
        "pinned_reserve": lambda n: pinned(n, "pinned_reserve_segment_size_mb:8"),
    }
    scenes = [json.loads(line) for line in (Path(__file__).parent / "golden_scenes.jsonl").read_text().splitlines()
              if line.startswith('{"op": "config"')]  # fmt: skip
    return found | {scene["name"]: scripted for scene in scenes}


def recorder(replay):
    """Return the class that runs the operations of replay.py and those above on PyTorch."""

    class Recorder(replay.Replay):
        def __init__(self, config):
            super().__init__(config)
            self.entered, self.graphs = {}, {}
            self.pinned, self.blocks, self.made = {}, {}, 0
            if config.get("pinned"):
                self.target = self.torch.empty(1, dtype=self.torch.uint8, device="cuda")
            self.host = self.host_stats()

        def do(self, o):
            method = getattr(self, f"do_{o['op']}", None)
            if method is None:
                return super().do(o)
            return method(o) or {}

        def host_stats(self):
            return {k: int(v) for k, v in self.torch.cuda.host_memory_stats().items() if "_time." not in k}

        def do_pool_new(self, o):
            options = {key: o[key] for key in ("use_on_oom", "no_split") if key in o}
            with self.torch.cuda.device(o.get("device", 0)):
                self.pools[o["pool"]] = self.torch.cuda.MemPool(**options)
            return {"id": list(self.pools[o["pool"]].id)}

        def do_pool_enter(self, o):
            entering = self.torch.cuda.use_mem_pool(self.pools[o["pool"]])
            entering.__enter__()
            self.entered[o["pool"]] = entering

        def do_pool_leave(self, o):
            self.entered.pop(o["pool"]).__exit__(None, None, None)

        def do_capture_begin(self, o):
            graph = self.torch.cuda.CUDAGraph()
            of = {}
            if "pool" in o:
                of["pool"] = self.graphs[o["pool"]][0].pool() if o["pool"] in self.graphs else self.pools[o["pool"]].id
            with self.torch.cuda.stream(stream := self.stream(o["stream"], o.get("device", 0))):
                graph.capture_begin(capture_error_mode="relaxed", **of)
            self.graphs[o["graph"]] = graph, stream

        def do_capture_end(self, o):
            graph, stream = self.graphs[o["graph"]]
            with self.torch.cuda.stream(stream):
                graph.capture_end()
            return {"id": list(graph.pool())}

        def do_graph_del(self, o):
            self.graphs.pop(o["graph"])[0].reset()

        def do_host_alloc(self, o):
            before = self.host_stats().get("num_host_alloc", 0)
            block = self.torch.empty(o["size"], dtype=self.torch.uint8, pin_memory=True)
            self.pinned[o["id"]] = block
            if self.host_stats().get("num_host_alloc", 0) > before:
                self.blocks[block.data_ptr()] = self.made = self.made + 1
            return {"block": self.blocks.get(block.data_ptr())}

        def do_host_free(self, o):
            del self.pinned[o["id"]]

        def do_host_record(self, o):
            first = self.pinned[o["id"]][:1]
            if first.numel():
                with self.torch.cuda.stream(self.stream(o["stream"])):
                    self.target.copy_(first, non_blocking=True)

        def do_host_empty_cache(self, _):
            self.torch._C._host_emptyCache()

        def do_host_reset_peak(self, _):
            self.torch.cuda.reset_peak_host_memory_stats()

        def do_host_reset_accumulated(self, _):
            self.torch.cuda.reset_accumulated_host_memory_stats()

        def do_trace(self, o):
            entries = self.torch.cuda.memory._snapshot()["device_traces"][o.get("device", 0)]
            shown = []
            for e in entries:
                kept = {
                    "action": e["action"],
                    "addr": replay.rel(e["addr"]) if "addr" in e else None,
                    "size": e["size"],
                }
                kept["stream"] = self.stream_index(e["stream"])
                shown.append(kept | {key: e[key] for key in ("device_free", *o.get("keys", ())) if key in e})
            return {"trace": shown}

    return Recorder


def record(oracle, operations, output):
    """Run the operations and write the trace, in the process that has PyTorch and the stand-in runtime."""
    sys.path.insert(0, oracle)
    import replay

    config, *operations = operations
    device = recorder(replay)(config)
    torch = device.torch
    shown = torch.cuda.memory._snapshot()["allocator_settings"]
    shown.pop("roundup_power2_divisions")
    header = {"torch": torch.__version__, "config": config, "allocator_settings": shown}
    lines = [{"header": header | {"backend": torch.cuda.get_allocator_backend()}}]
    before = {}

    def changed(name, stats):
        old = before.get(name)
        before[name] = stats
        if old is None:
            return {name: stats}
        gone = [f"{name}:{key}" for key in old if key not in stats]
        moved = {f"{name}_delta": {key: n for key, n in stats.items() if old.get(key) != n}}
        return moved | ({"stats_gone": gone} if gone else {})

    for i, operation in enumerate(operations):
        try:
            result = device.do(operation)
        except Exception as error:  # noqa: BLE001 -- every error is recorded
            kind = f"{type(error).__module__}.{type(error).__name__}"
            result = {"error": kind, "message": str(error).partition("\n")[0]}
            error = None
        line = {"i": i, "op": operation, "result": result}
        if config.get("pinned"):
            line |= changed("host_stats", device.host_stats())
        elif (i + 1) % config.get("stats_every", 1) == 0 or i + 1 == len(operations):
            count = range(torch.cuda.device_count())
            line["device_used"] = [device.fake.fake_get_used(index) for index in count]
            for index in count:
                stats = {key: int(n) for key, n in torch.cuda.memory_stats(index).items()}
                line |= changed(f"stats{index or ''}", stats)
            if (i + 1) % config.get("segments_every", 1) == 0:
                line["segments"] = device.segments()
        lines.append(line)
    output.write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    output.flush()
    os._exit(0)  # skip the destruction of live objects


def make(oracle, name, operations):
    operations = list(operations)
    config = operations[0]
    environment = {k: v for k, v in os.environ.items() if "ALLOC_CONF" not in k}
    environment |= {
        "PYTORCH_CUDA_ALLOC_CONF": config.get("conf", ""),
        "FAKE_CUDA_TOTAL_MB": str(config["total_mb"]),
        "FAKE_CUDA_CONTEXT_MB": str(config.get("context_mb", 0)),
        "FAKE_CUDA_DEVICES": str(config.get("devices", 1)),
    }
    command = [f"{oracle}/run.sh", __file__, oracle, "--record"]
    done = subprocess.run(
        command, input=json.dumps(operations), env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / f"{name}.jsonl.xz"
    path.write_bytes(lzma.compress(done.stdout.encode(), preset=9))
    print(f"{path.name}: {len(operations) - 1} operations, {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("oracle")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--record", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    oracle = str(Path(options.oracle).resolve())
    if options.record:
        record(oracle, json.load(sys.stdin), sys.stdout)
    for name, operations in traces().items():
        if not options.names or name in options.names:
            make(oracle, name, operations(name))


if __name__ == "__main__":
    main()
