"""Attribution of the memory of a PyTorch program on emulated devices: by category, module and line."""

from forebay.interop.torch.attribution.ledger import Ledger
from forebay.interop.torch.attribution.results import CATEGORIES, Holder, PeakUse

__all__ = ["CATEGORIES", "Holder", "Ledger", "PeakUse"]
