"""A small training step on a simulated device, whose parts can be changed, as a source of histories."""

from __future__ import annotations

from dataclasses import dataclass

from forebay import OutOfMemory, simulate
from forebay.snapshot import Snapshot
from forebay.snapshot.formats import torch_pickle
from support.snapshot_programs import MIB, dumped


@dataclass
class Step:
    """A program that runs out of memory in its backward pass, unless it is changed."""

    layers: int = 12
    layer_mib: float = 60
    logits_mib: float = 150
    keeps_logits: bool = True
    gradient_mib: float = 90
    total_mib: int = 1200
    recorded_weights: bool = True
    weight_mib: float = 30

    def run(self) -> tuple[simulate.Device, bool]:
        """Return the device afterwards, and whether the program ran to its end."""
        self.gpu = gpu = simulate.Device(self.total_mib * MIB)
        if self.recorded_weights:
            gpu.record_history()
        else:
            gpu.record_history("state")
        for _ in range(4):
            self.weight()
        gpu.record_history(clear_history=not self.recorded_weights)
        try:
            activations, logits = self.forward()
            if not self.keeps_logits:
                gpu.free(logits)
            self.backward(activations)
        except OutOfMemory:
            return gpu, False
        return gpu, True

    def snapshot(self) -> Snapshot:
        """Return the snapshot after a run."""
        gpu, _ = self.run()
        (found,) = torch_pickle.parse(dumped(gpu.snapshot()))
        return found

    def weight(self) -> int:
        return self.gpu.allocate(int(self.weight_mib * MIB))

    def forward(self) -> tuple[list[int], int]:
        return [self.layer() for _ in range(self.layers)], self.logits()

    def layer(self) -> int:
        return self.gpu.allocate(int(self.layer_mib * MIB))

    def logits(self) -> int:
        return self.gpu.allocate(int(self.logits_mib * MIB))

    def backward(self, activations: list[int]) -> None:
        for _ in range(3):
            self.gradient()
        for _ in range(6):
            if activations:
                self.gpu.free(activations.pop(0))
            self.update()

    def gradient(self) -> int:
        return self.gpu.allocate(int(self.gradient_mib * MIB))

    def update(self) -> int:
        return self.gpu.allocate(10 * MIB)
