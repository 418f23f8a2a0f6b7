"""Answers to "will it fit?": functions of PyTorch programs on emulated cards, each in a process of its own."""

from forebay.interop.torch.fit.questions import sweep, will_it_fit
from forebay.interop.torch.fit.results import FitResult, FitTable

__all__ = ["FitResult", "FitTable", "sweep", "will_it_fit"]
