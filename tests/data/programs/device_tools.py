"""The work of launchers and trainers before they compute: choose a device, check versions, seed, save random states."""

import importlib.util
import os

import torch
import torch.backends.cudnn as cudnn  # noqa: PLR0402 -- the usual spelling
from torch import Tensor
from torch import distributed as dist
from torch._utils import _get_available_device_type, _get_device_index, _get_device_module
from torch.storage import UntypedStorage


# Choose a device (torchtnt, torchtune, mmengine, diffusers, ComfyUI).
def choose() -> torch.device:
    if torch.cuda.is_available():
        index = int(os.environ.get("LOCAL_RANK", "0"))
        if index >= torch.cuda.device_count():
            raise RuntimeError("more processes than devices")
        return torch.device(f"cuda:{index}")
    if torch.backends.mps.is_built() and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("xpu" if torch.xpu.is_available() else "cpu")


device = choose()
kind = _get_available_device_type()
module = _get_device_module(kind)
print(device, kind, module is torch.cuda, _get_device_index("cuda:1"), _get_device_index(None, optional=True))
print(module.get_device_capability(device) >= (7, 0), torch.get_device_module(device) is module)
print(getattr(torch, device.type) is module, hasattr(torch, "npu"), hasattr(torch, "hpu"))
print([torch.device("cuda", index) for index in range(torch.cuda.device_count())])
print(importlib.util.find_spec("torch") is not None, importlib.util.find_spec("torch.not_there") is None)

# Check versions and builds.
print(tuple(int(part) for part in torch.__version__.split(".")[:2]), torch.version.__version__ == torch.__version__)
print([torch.__version__ >= each for each in ("1.13.1", "2.9", "2.15.0", "2.15.0rc1", "3.0", (2, 9), (2, 15), (3,))])
print([torch.__version__ > each for each in ("2.15", "2.16.dev20260101", "nonsense")], torch.__version__ == "2.15.0")
print(torch.version.cuda is not None, torch.version.hip is None, torch.backends.cuda.is_built())

# Settings at the start (torchtnt, fastai, Lightning).
cudnn.benchmark, cudnn.deterministic = False, True
if torch.get_float32_matmul_precision() == "highest":
    torch.set_float32_matmul_precision("high")
print(torch.backends.cudnn.deterministic, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)

# Process groups (torchtune, Lightning).
print((dist.get_world_size(), dist.get_rank()) if dist.is_available() and dist.is_initialized() else (1, 0))

# Seeds and states of all generators (Lightning, fastai, Megatron).
torch.manual_seed(11)
states = {"host": torch.get_rng_state(), "devices": torch.cuda.get_rng_state_all()}
torch.manual_seed(12)
torch.cuda.manual_seed(13)
torch.set_rng_state(states["host"])
torch.cuda.set_rng_state_all(states["devices"])
print(torch.initial_seed(), torch.cuda.initial_seed(), len(states["devices"]))


# Move nested data to a device, with a stream that uses it (Lightning, ignite, torchtnt).
def move(data, where):
    if isinstance(data, dict):
        return {name: move(each, where) for name, each in data.items()}
    if isinstance(data, list):
        return [move(each, where) for each in data]
    return data.to(where, non_blocking=True) if isinstance(data, Tensor) else data


batch = move([torch.empty(2), {"labels": torch.empty(3, dtype=torch.long), "name": "x"}], torch.device("cuda:1"))
print(batch[0].device, batch[1]["labels"].dtype, batch[1]["labels"].device, batch[1]["name"])
batch[0].record_stream(torch.cuda.Stream("cuda:1"))
with torch.no_grad():
    detached = batch[0].detach()
    print(torch.is_grad_enabled(), detached.requires_grad, detached.data_ptr() == batch[0].data_ptr())
with torch.inference_mode():
    print(torch.is_inference_mode_enabled(), torch.is_grad_enabled())
print(isinstance(detached.untyped_storage(), UntypedStorage), isinstance(batch[0].cpu(), torch.FloatTensor))

# Limits of element types.
for dtype in (torch.float16, torch.float32):
    print(torch.finfo(dtype), torch.finfo(dtype).bits // 8 == torch.empty(1, dtype=dtype).element_size())
print(torch.iinfo(torch.long).max, torch.iinfo(torch.uint8))
