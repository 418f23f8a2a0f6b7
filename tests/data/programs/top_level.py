import torch

device = torch.device("cuda", 1)
print(device, repr(device), device.type, device.index, torch.cuda.is_available(), torch.cuda.device_count())
x = torch.ones(2, 3)
print(x, x.dtype, x.device, x.shape, x.size(0), x.stride(), x.numel(), x.element_size(), x.nbytes, x.is_cuda)
y = torch.empty(2, 3, dtype=torch.int64, device=device)
print(y.device, y.is_cuda, y.get_device(), y.shape.numel(), y.cpu().device, x.to(device).device, x.cuda().device)
print(torch.zeros_like(x), torch.full((2,), 7), torch.arange(3), torch.tensor([1.5, 2]), torch.as_tensor([True]))
print(torch.empty_like(y).device, torch.ones_like(x, dtype=torch.int32), torch.full_like(x, 2.5))
print(x.pin_memory().is_pinned(), x.is_pinned(), torch.empty(2, pin_memory=True).is_pinned())
with torch.device("cuda:0"):
    print(torch.empty(1).device, torch.get_default_device())
torch.set_default_device("cuda:1")
print(torch.empty(1).device, torch.get_default_device())
torch.set_default_device(None)
print(torch.empty(1).device)
stream, event = torch.cuda.Stream(device), torch.cuda.Event()
with torch.cuda.stream(stream):
    event.record()
print(torch.cuda.current_stream() == stream, isinstance(stream, torch.Stream), torch.Stream(device="cuda").device)
torch.manual_seed(3)
state = torch.get_rng_state()
with torch.random.fork_rng(devices=[]):
    torch.rand(2)
print(torch.initial_seed(), torch.get_rng_state().tolist() == state.tolist())
print(torch.accelerator.current_accelerator(), torch.accelerator.device_count())
print(torch.Size([2, 3]), torch.float, torch.long, torch.bool)
try:
    torch.empty(1 << 60, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print(type(error).__name__ in ("OutOfMemoryError", "OutOfMemory"), str(error).split(". ")[0])
for bad in (lambda: torch.device("gpu"), lambda: torch.cuda.set_device(9)):
    try:
        bad()
    except RuntimeError as error:
        print(str(error).split("\n")[0][:60])
print(isinstance(x, torch.Tensor), x.tolist(), x[0, 0].item(), torch.from_numpy(x.numpy()).data_ptr() == x.data_ptr())
