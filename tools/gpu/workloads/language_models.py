"""Language models of transformers: training with PEFT, accelerate and checkpoints, inference and generation."""

from __future__ import annotations

from typing import Any

import torch

from gpu.workloads.training import ADAMW_FUSED, Recipe, mixed_precision, training
from gpu.workloads.workload import Setting, Step, workload

VOCABULARY, LENGTH = 16384, 512
NEW_TOKENS = 16


def gpt2(setting: Setting) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=512, n_layer=setting.layers(6), n_head=8, n_positions=LENGTH, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(setting.device)


def llama(setting: Setting, dtype: torch.dtype = torch.bfloat16) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1408, num_hidden_layers=setting.layers(6),
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=LENGTH,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(setting.device, dtype)


def bert(setting: Setting) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=2048, num_hidden_layers=setting.layers(6),
        num_attention_heads=8,
    )  # fmt: skip
    return BertForMaskedLM(config).to(setting.device)


def random_tokens(setting: Setting, batch: int, length: int = LENGTH) -> Any:
    return torch.randint(VOCABULARY, (setting.batch(batch), setting.length(length)), device=setting.device)


def language_training(setting: Setting, model: Any, recipe: Recipe, batch: int = 8) -> Step:
    """Return a training step in which the tokens are their own labels."""
    model.train()
    tokens = random_tokens(setting, batch)
    return training(setting, model, lambda: model(input_ids=tokens, labels=tokens).loss, recipe)


@workload("gpt2_bf16", packages=("transformers",))
def gpt2_bf16(setting: Setting) -> Step:
    return language_training(setting, gpt2(setting), Recipe(autocast="bf16"))


@workload("gpt2_fp32", packages=("transformers",))
def gpt2_fp32(setting: Setting) -> Step:
    return language_training(setting, gpt2(setting), Recipe(), batch=4)


@workload("llama_bf16", packages=("transformers",))
def llama_bf16(setting: Setting) -> Step:
    return language_training(setting, llama(setting), Recipe())


@workload("llama_checkpoints", packages=("transformers",))
def llama_checkpoints(setting: Setting) -> Step:
    model = llama(setting)
    model.gradient_checkpointing_enable()
    return language_training(setting, model, Recipe(ADAMW_FUSED), batch=16)


@workload("llama_lora", packages=("transformers", "peft"))
def llama_lora(setting: Setting) -> Step:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    return language_training(setting, get_peft_model(llama(setting), config), Recipe(autocast="bf16"))


@workload("bert_fp16", packages=("transformers",))
def bert_fp16(setting: Setting) -> Step:
    return language_training(setting, bert(setting), Recipe(autocast="fp16", most_norm=1.0))


@workload("bert_inference", packages=("transformers",))
def bert_inference(setting: Setting) -> Step:
    model = bert(setting).eval()
    tokens = random_tokens(setting, 16)

    def step() -> Any:
        with torch.inference_mode(), mixed_precision(setting, "bf16"):
            return model(input_ids=tokens).logits.float().mean()

    return step


@workload("llama_accelerate", packages=("transformers", "accelerate"))
def llama_accelerate(setting: Setting) -> Step:
    """Train with accelerate, which chooses the device itself and wraps the model and the optimizer."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=setting.device == "cpu")
    model = llama(setting, torch.float32).train()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    tokens = random_tokens(setting, 8)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        optimizer.step()
        return loss.detach()

    return step


@workload("llama_greedy", packages=("transformers",))
def llama_greedy(setting: Setting) -> Step:
    """Generate greedily with a loop of its own and the cache of transformers."""
    model = llama(setting).eval()
    prompt = random_tokens(setting, 8, LENGTH // 2)

    def step() -> Any:
        with torch.no_grad():
            given, cache, chosen = prompt, None, []
            for _ in range(NEW_TOKENS):
                output = model(input_ids=given, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                given = output.logits[:, -1:].argmax(-1)
                chosen.append(given)
            return torch.cat(chosen, 1).sum().float()

    return step


@workload("llama_generate", packages=("transformers",), steps=2, reads_values="generate() looks for the last token")
def llama_generate(setting: Setting) -> Step:
    model = llama(setting).eval()
    prompt = random_tokens(setting, 8, LENGTH // 2)
    mask = torch.ones_like(prompt)

    def step() -> Any:
        tokens = model.generate(
            prompt, attention_mask=mask, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        return tokens.sum().float()

    return step
