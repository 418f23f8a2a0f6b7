"""Four training steps of a language model in float32: language_model.py MODEL OPTIMIZER BATCH ZERO_GRAD [LENGTH ...]

As github.com/Stone-ResearchLife/xMem does at d61e0764: lines of at most 128 tokens, padded to the longest of a batch,
random weights, dropout, and the output of a step is held during the next one. ZERO_GRAD is 0 at the start of a step, 1
before backward, 2 after the optimizer.
"""

import sys
from typing import Any

import torch
import transformers

WIDE = {"attn_implementation": "eager"}  # these classes had no other attention then
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "distilbert-distilgpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_layer": 6}),
    "openai-community-gpt2": ("GPT2LMHeadModel", "GPT2Config", {}),
    "cerebras-Cerebras-GPT-111M": (
        "GPT2LMHeadModel", "GPT2Config",
        {"n_embd": 768, "n_layer": 10, "n_head": 12, "n_inner": 3072, "n_positions": 2048,
         "activation_function": "gelu"},
    ),
    "EleutherAI-gpt-neo-125M": (
        "GPTNeoForCausalLM", "GPTNeoConfig",
        {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]],
         "max_position_embeddings": 2048, **WIDE},
    ),
    "facebook-opt-125m": ("OPTForCausalLM", "OPTConfig", {}),
    "facebook-opt-350m": (
        "OPTForCausalLM", "OPTConfig",
        {"hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
         "word_embed_proj_dim": 512, "do_layer_norm_before": False},
    ),
    "T5-small": (
        "T5ForConditionalGeneration", "T5Config",
        {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "decoder_start_token_id": 0, **WIDE},
    ),
    "t5-base": (
        "T5ForConditionalGeneration", "T5Config",
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0, **WIDE},
    ),
}  # fmt: skip

name, optimizer_name, batch, zero_grad = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
lengths = [int(each) for each in sys.argv[5:]] or [128]
model_class, config_class, sizes = MODELS[name]
with torch.device("cuda"):
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**sizes))
model.train()
optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
for step in range(4):
    if zero_grad == 0:
        optimizer.zero_grad()
    shape = (batch, lengths[step % len(lengths)])
    ids = torch.randint(0, model.config.vocab_size, shape)
    inputs = {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long), "labels": ids.clone()}
    inputs = {key: each.to("cuda") for key, each in inputs.items()}
    outputs = model(**inputs)
    loss = outputs.loss
    if zero_grad == 1:
        optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if zero_grad == 2:
        optimizer.zero_grad()
