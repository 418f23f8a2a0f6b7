"""Detection of data races between streams (`TORCH_CUDA_SANITIZER`)."""

from forebay.observe.races.detector import Detector, detected
from forebay.observe.races.report import Access, AccessType, CUDASanitizerErrors, UnsynchronizedAccessError

__all__ = ["Access", "AccessType", "CUDASanitizerErrors", "Detector", "UnsynchronizedAccessError", "detected"]
