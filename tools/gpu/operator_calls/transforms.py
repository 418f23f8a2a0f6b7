"""Fourier transforms, whose workspaces cuFFT asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of

__all__ = ["FAMILIES"]

_OPERATORS: dict[str, Callable[[Any, Any], object]] = {
    "fft": lambda torch, given: torch.fft.fft(given),
    "rfft": lambda torch, given: torch.fft.rfft(given),
    "ifft": lambda torch, given: torch.fft.ifft(given),
    "irfft": lambda torch, given: torch.fft.irfft(given),
    "hfft": lambda torch, given: torch.fft.hfft(given),
    "fft2": lambda torch, given: torch.fft.fft2(given),
    "rfft2": lambda torch, given: torch.fft.rfft2(given),
    "irfft2": lambda torch, given: torch.fft.irfft2(given),
    "fftn": lambda torch, given: torch.fft.fftn(given),
    "rfftn": lambda torch, given: torch.fft.rfftn(given),
    "fft of the first dimension": lambda torch, given: torch.fft.fft(given, dim=0),
    "fft padded": lambda torch, given: torch.fft.fft(given, n=given.shape[-1] * 2),
    "rfft, then irfft": lambda torch, given: torch.fft.irfft(torch.fft.rfft(given) * 2, n=given.shape[-1]),
    "fftshift": lambda torch, given: torch.fft.fftshift(given),
    "stft": lambda torch, given: torch.stft(given, 16, return_complex=True, window=torch.ones(16, device=given.device)),
    "stft, then istft": lambda torch, given: torch.istft(
        torch.stft(given, 16, return_complex=True, window=torch.ones(16, device=given.device)),
        16,
        window=torch.ones(16, device=given.device),
    ),
}


def _transform(
    kit: Kit, operator: str, shape: Sequence[int], dtype: str = "float32", direction: str = "forward"
) -> Run | tuple[Any, Run]:
    function, torch = _OPERATORS[operator], kit.torch
    given = kit.tensor(shape, dtype, grad=direction == "backward")
    if direction == "backward":
        return kit.backward(lambda: function(torch, given), [given])
    return lambda: function(torch, given)


_CALLS = [
    {"operator": operator, "shape": shape, **more}
    for operator, shape, more in (
        ("fft", [64, 1024], {"dtype": "complex64"}),
        ("rfft", [64, 1024], {}),
        ("irfft", [64, 513], {"dtype": "complex64"}),
        ("fft", [64, 1009], {"dtype": "complex64"}),
        ("rfft2", [8, 224, 224], {}),
        ("fft", [1 << 20], {"dtype": "complex64"}),
        ("fft2", [8, 64, 224, 224], {"dtype": "complex64"}),
        ("fftn", [4, 32, 64, 64], {"dtype": "complex64"}),
        ("fft", [64, 1000], {}),
        ("rfft", [64, 1000], {}),
        ("rfft", [64, 1009], {}),
        ("ifft", [64, 1024], {"dtype": "complex64"}),
        ("fft", [1 << 22], {"dtype": "complex64"}),
        ("fft", [1 << 24], {"dtype": "complex64"}),
        ("rfft", [1 << 22], {}),
        ("fft", [1024, 4096], {"dtype": "complex64"}),
        ("fft", [8, 100_003], {"dtype": "complex64"}),
        ("fft", [64, 1024], {"dtype": "complex128"}),
        ("rfft", [64, 1024], {"dtype": "float16"}),
        ("rfft", [64, 1024], {"dtype": "float64"}),
        ("fft", [64, 1024], {"dtype": "float16"}),
        ("irfft2", [8, 224, 113], {"dtype": "complex64"}),
        ("rfftn", [32, 64, 64], {}),
        ("hfft", [64, 513], {"dtype": "complex64"}),
        ("fft of the first dimension", [1024, 64], {"dtype": "complex64"}),
        ("fft padded", [64, 1024], {"dtype": "complex64"}),
        ("rfft, then irfft", [64, 4096], {}),
        ("fftshift", [64, 1024], {}),
        ("stft", [8, 16_000], {}),
        ("stft, then istft", [8, 16_000], {}),
        ("rfft", [64, 1024], {"direction": "backward"}),
        ("fft", [64, 1024], {"dtype": "complex64", "direction": "backward"}),
        ("rfft2", [8, 224, 224], {"direction": "backward"}),
        ("fft2", [256, 256], {"dtype": "complex64"}),
        ("rfft", [100_000, 32], {}),
        ("rfft", [64, 999], {"direction": "backward"}),
    )
]

FAMILIES = {"Fourier transforms": calls_of("Fourier transforms", "transform", _transform, _CALLS)}
