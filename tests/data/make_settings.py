"""Record the effect of allocator settings strings in PyTorch, for tests/runtime/settings/test_parser.py.

Run it under the oracle, which is not part of this repository (see its README):

    ../shared/torch-oracle/run.sh tests/data/make_settings.py ../shared/torch-oracle/fake/inc

Writes allocator_settings.json.xz: the strings of settings_texts.py and 400 random ones, each applied in a forked
process. A C++ probe reads the settings that Python cannot access. It is compiled against the headers of the wheel; the
argument is a folder with the CUDA headers that the wheel lacks.
"""

from __future__ import annotations

import ctypes
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # not available where doctests are collected
    import torch
    from settings_texts import SEQUENCES, STARTS, random_text

HERE = Path(__file__).parent
TOTAL = 1 << 40  # device memory for which reserves are computed
PROBE = r"""
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <sstream>
#include <cstring>
using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
extern "C" void settings(char* out) {
  std::ostringstream s;
  s << std::hexfloat << "max_split_size " << Common::max_split_size()
    << "\nmax_non_split_rounding " << Common::max_non_split_rounding_size()
    << "\nlarge_segment_size " << Common::large_segment_size()
    << "\ngarbage_collection_threshold " << Common::garbage_collection_threshold()
    << "\nexpandable_segments " << Common::use_expandable_segments()
    << "\nrelease_lock_on_cudamalloc " << Cuda::release_lock_on_cudamalloc()
    << "\ngraph_capture_record_stream_reuse " << Cuda::graph_capture_record_stream_reuse()
    << "\nthrow_on_cudamalloc_oom " << Cuda::throw_on_cudamalloc_oom()
    << "\nper_process_memory_fraction " << Cuda::per_process_memory_fraction()
    << "\npinned_use_cuda_host_register " << Cuda::pinned_use_cuda_host_register()
    << "\npinned_num_register_threads " << Cuda::pinned_num_register_threads()
    << "\npinned_use_background_threads " << Common::pinned_use_background_threads()
    << "\npinned_reserve_segment_size " << (Cuda::pinned_reserve_segment_size_mb() << 20)
    << "\npinned_max_round_threshold " << Common::pinned_max_round_threshold()
    << "\npinned_max_cached_size " << Common::pinned_max_cached_size()
    << "\npinned_free_catch_all " << Cuda::pinned_free_catch_all();
  std::strcpy(out, s.str().c_str());
}
extern "C" size_t divisions(size_t size) { return Common::roundup_power2_divisions(size); }
extern "C" size_t reserve(const char* name, size_t total) {
  size_t full = total + total / 8;
  return Cuda::clamp_reserve_bytes(Cuda::expandable_segments_reserve_decision(name, total), full);
}
"""


def compile_probe(folder: str) -> ctypes.CDLL:
    package = Path(torch.__file__).parent
    include = [package / "include", package.parent / "nvidia/cu13/include", *sys.argv[1:2]]
    source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
    source.write_text(PROBE)
    flags = ["-std=c++20", "-shared", "-fPIC", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE", *(f"-I{path}" for path in include)]
    command = ["g++", *flags, str(source), "-o", str(library), f"-L{package / 'lib'}", "-lc10", "-lc10_cuda"]
    subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if not k.startswith("LD_")})
    probe = ctypes.CDLL(str(library))
    probe.divisions.argtypes, probe.divisions.restype = [ctypes.c_size_t], ctypes.c_size_t
    probe.reserve.argtypes, probe.reserve.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_size_t
    return probe


def number(text: str) -> int | str:
    return text if text.lstrip("-").startswith("0x") else int(text)


def state(probe: ctypes.CDLL, names: list[str]) -> dict[str, object]:
    buffer = ctypes.create_string_buffer(4096)
    probe.settings(buffer)
    found = {key: number(value) for key, value in map(str.split, buffer.value.decode().splitlines())}
    found["roundup_power2_divisions"] = [probe.divisions((1 << 20) << slot) for slot in range(16)]
    found["reserves"] = {name: probe.reserve(name.encode(), TOTAL) for name in names}
    found["text"] = torch._C._accelerator_getAllocatorSettings()
    return found


def attempt(probe: ctypes.CDLL, texts: list[str]) -> dict[str, object]:
    """Apply the texts one after the other. Return their errors and the state after the last one."""
    names = ["", *sorted({word for text in texts if "by_class" in text for word in re.findall(r"[\w.]+|[,\[]", text)})]
    errors: list[list[str] | None] = []
    for text in texts:
        try:
            torch._C._accelerator_setAllocatorSettings(text)
            errors.append(None)
        except Exception as error:  # noqa: BLE001 -- the error is the result
            errors.append([type(error).__name__, re.sub(r"^.* INTERNAL ASSERT FAILED .*?PyTorch\. ", "", str(error))])
    found = {"texts": texts, "errors": errors, "state": state(probe, names)}
    found["snapshot"] = torch._C._cuda_memorySnapshot(None)["allocator_settings"]
    return found


def initialise(probe: ctypes.CDLL) -> dict[str, object]:
    """Initialise CUDA with the settings of the environment. Return the error or the state."""
    try:
        torch.cuda.init()
        return {"error": None, "backend": torch.cuda.get_allocator_backend(), "state": state(probe, [""])}
    except Exception as error:  # noqa: BLE001 -- as above
        return {"error": [type(error).__name__, re.sub(r"^.* INTERNAL ASSERT FAILED .*?PyTorch\. ", "", str(error))]}


def block(conf: str, nbytes: int) -> list[int]:
    """Return the bytes of the block and of the segment that a request allocates."""
    torch._C._accelerator_setAllocatorSettings(conf)
    address = torch._C._cuda_cudaCachingAllocator_raw_alloc(nbytes, 0)
    stats = torch._C._cuda_memoryStats(0)
    torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    return [stats[name]["all"]["current"] for name in ("allocated_bytes", "reserved_bytes")]


def forked(work, *args):
    """Run `work` in a forked process. Return its result and the warnings that it printed."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile() as stderr:
        if not (child := os.fork()):
            os.dup2(stderr.fileno(), 2)
            with os.fdopen(write_end, "w") as out:
                json.dump(work(*args), out)
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as results:
            result = json.loads(results.read())
        os.waitpid(child, 0)
        stderr.seek(0)
        return result, re.findall(r"Warning: (.*?) \((?:function|Triggered)", stderr.read().decode())


def in_new_process(environ: dict[str, str]) -> dict[str, object]:
    """Initialise in a new interpreter, as loading the library selects the backend. The result is None if it crashes."""
    run = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:2], "start"], env=os.environ | environ, capture_output=True, check=False
    )
    printed = re.findall(r"Warning: (.*?) \((?:function|Triggered)", run.stderr.decode())
    result = json.loads(run.stdout) if run.returncode == 0 else None
    return {"environ": environ, "result": result, "warnings": printed}


def random_sequences(count: int) -> list[list[str]]:
    rng = random.Random(3)
    return [[random_text(rng) for _ in range(rng.choice((1, 1, 2)))] for _ in range(count)]


def main(probe: ctypes.CDLL) -> None:
    torch.cuda.init()
    rows = []
    for texts in [*SEQUENCES, *random_sequences(400)]:
        row, printed = forked(attempt, probe, texts)
        rows.append(row | {"warnings": printed})
    sizes = [1, 511, 512, 513, 1024, 1200, 2048, 2049, 4097, 5000, 1 << 19, (1 << 20) - 1, 1 << 20, (1 << 20) + 1]
    sizes += [(3 << 20) + 5, (9 << 20) + 1, (10 << 20) - 512, (10 << 20) - 511, 10 << 20, 11 << 20, (30 << 20) + 7]
    confs = ["", "large_segment_size_mb:64", "large_segment_size_mb:11"]
    confs += [f"roundup_power2_divisions:{1 << power}" for power in (0, 1, 2, 3, 4, 10, 54, 55, 63)]
    confs += ["roundup_power2_divisions:[1:2,4:8,>:16]", "large_segment_size_mb:33,roundup_power2_divisions:[16:4]"]
    blocks = [[conf, size, *forked(block, conf, size)[0]] for conf in confs for size in sizes]
    table = {"torch": torch.__version__, "total": TOTAL, "rows": rows, "blocks": blocks}
    table["starts"] = [in_new_process(environ) for environ in STARTS]
    text = json.dumps(table, ensure_ascii=True, separators=(",", ":"))
    Path(HERE, "allocator_settings.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    print(len(rows), "sequences,", len(blocks), "blocks,", len(STARTS), "starts")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        the_probe = compile_probe(folder)
        if sys.argv[2:] == ["start"]:
            print(json.dumps(initialise(the_probe)))
        else:
            main(the_probe)
