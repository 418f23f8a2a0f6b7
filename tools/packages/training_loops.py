"""Packages that run the training loop: accelerate, the Trainer of transformers, Lightning."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from packages.program import program
from packages.transformers_models import llama


def accelerator(**options: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001 -- as the package's own tests do
    PartialState._reset_state()  # noqa: SLF001 -- as above
    return Accelerator(**options)


@program("accelerate bfloat16, accumulated gradients", on_gpu_only=True)
def accumulated(place: str) -> torch.Tensor:  # noqa: ARG001 -- accelerate chooses
    torch.manual_seed(0)
    runner = accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = DataLoader(TensorDataset(torch.randn(16, 8), torch.randn(16, 1)), batch_size=4, pin_memory=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, data, schedule = runner.prepare(model, optimizer, data, schedule)
    for inputs, targets in data:
        with runner.accumulate(model):
            loss = (model(inputs) - targets).square().mean()
            runner.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    runner.free_memory()
    return loss.detach()


@program("accelerate float16, scaled gradients", on_gpu_only=True)
def scaled(place: str) -> torch.Tensor:  # noqa: ARG001 -- as above
    torch.manual_seed(0)
    runner = accelerator(mixed_precision="fp16")
    model = nn.Linear(8, 1)
    model, optimizer = runner.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(3):
        loss = model(torch.ones(4, 8, device=runner.device)).square().mean()
        runner.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    runner.free_memory()
    return loss.detach()


@program("transformers Trainer", on_gpu_only=True, reads_values="it looks for losses that are not numbers")
def trainer(place: str) -> torch.Tensor:  # noqa: ARG001 -- as above
    import transformers

    accelerator()
    examples = [{"input_ids": torch.arange(12) % 50, "labels": torch.arange(12) % 50} for _ in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        options = transformers.TrainingArguments(
            folder, per_device_train_batch_size=2, max_steps=3, report_to=[], bf16=True, save_strategy="no",
            disable_tqdm=True, gradient_checkpointing=True,
        )  # fmt: skip
        return torch.tensor(transformers.Trainer(llama(), options, train_dataset=examples).train().training_loss)


@program("trl SFTTrainer", on_gpu_only=True, reads_values="it is a Trainer of transformers")
def fine_tuning(place: str) -> torch.Tensor:  # noqa: ARG001 -- as above
    import datasets
    import tokenizers
    import transformers
    import trl

    accelerator()
    datasets.disable_progress_bars()
    vocabulary = {"a": 0, "b": 1, "<pad>": 2, "</s>": 3}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))  # noqa: S106 -- a word
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    texts = datasets.Dataset.from_list([{"text": "a b a b a a"}] * 8)
    with tempfile.TemporaryDirectory() as folder:
        options = trl.SFTConfig(
            folder, max_steps=2, report_to=[], per_device_train_batch_size=2, save_strategy="no", disable_tqdm=True
        )
        trainer = trl.SFTTrainer(llama(), args=options, train_dataset=texts, processing_class=tokenizer)
        return torch.tensor(trainer.train().training_loss)


@program("Lightning bfloat16", on_gpu_only=True)
def lightning(place: str) -> torch.Tensor:  # noqa: ARG001 -- as above
    import pytorch_lightning

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.manual_seed(0)

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:  # noqa: ARG002 -- its signature
            self.last = self.layer(batch[0]).square().mean()
            return self.last

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 0.1)

    module = Module()
    with tempfile.TemporaryDirectory() as folder:
        pytorch_lightning.Trainer(
            accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, precision="bf16-mixed",
        ).fit(module, DataLoader(TensorDataset(torch.ones(8, 8)), batch_size=4))  # fmt: skip
    return module.last.detach()
