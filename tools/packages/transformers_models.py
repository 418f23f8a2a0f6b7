"""Models of transformers, with few layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers

from packages.program import add, program

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
IMAGES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
TWO_STACKS = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip

LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "Bart ForConditionalGeneration": {**TWO_STACKS, "max_position_embeddings": 64},
    "Bert ForMaskedLM": SMALL,
    "BigBird ForMaskedLM": {**SMALL, "attention_type": "original_full"},
    "Bloom ForCausalLM": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "DebertaV2 ForMaskedLM": {
        **SMALL, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
    },
    "DeepseekV3 ForCausalLM": {
        **SMALL, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 2,
        "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    },
    "DistilBert ForMaskedLM": {"vocab_size": 64, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    "Electra ForMaskedLM": {**SMALL, "embedding_size": 32},
    "Falcon ForCausalLM": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "GPT2 LMHeadModel": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "GPTNeoX ForCausalLM": SMALL,
    "Gemma ForCausalLM": {**GROUPED, "head_dim": 8},
    "Gemma2 ForCausalLM": {**GROUPED, "head_dim": 8, "sliding_window": 4},
    "Llama ForCausalLM": GROUPED,
    "Longformer ForMaskedLM": {**SMALL, "attention_window": 4, "pad_token_id": 1},
    "Mamba ForCausalLM": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "Mamba2 ForCausalLM": {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "num_heads": 8, "head_dim": 8,
        "n_groups": 1,
    },
    "Mistral ForCausalLM": GROUPED,
    "Mixtral ForCausalLM": {**GROUPED, "num_local_experts": 4},
    "OPT ForCausalLM": {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 64, "num_attention_heads": 4,
        "max_position_embeddings": 64, "word_embed_proj_dim": 32,
    },
    "Phi ForCausalLM": SMALL,
    "Qwen2 ForCausalLM": GROUPED,
    "Roberta ForMaskedLM": {**SMALL, "pad_token_id": 1},
    "T5 ForConditionalGeneration": {
        "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    },
}  # fmt: skip


def tokens() -> torch.Tensor:
    return torch.randint(2, 50, (2, 12), generator=torch.Generator().manual_seed(1))


def train_with_labels(
    family: str, task: str, options: dict[str, Any], inputs: dict[str, Any], place: str
) -> torch.Tensor:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**options)
    model = getattr(transformers, f"{family}{task}")(config).to(place).eval()
    given = {name: each.to(place) if isinstance(each, torch.Tensor) else each for name, each in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(**given).loss
        loss.backward()
        optimizer.step()
    return loss.detach()


def add_model(name: str, options: dict[str, Any], inputs: dict[str, Any], **about: Any) -> None:
    family, task = name.split()
    run = partial(train_with_labels, family, task, options, inputs)
    add(f"transformers {family}{task}", run, **about)


for _name, _options in LANGUAGE_MODELS.items():
    add_model(_name, _options, {"input_ids": tokens(), "labels": tokens()})
add_model(
    "ViT ForImageClassification", IMAGES, {"pixel_values": torch.ones(2, 3, 32, 32), "labels": torch.zeros(2).long()}
)
add_model(
    "CLIP Model",
    {"text_config": SMALL, "vision_config": IMAGES, "projection_dim": 16},
    {"input_ids": tokens(), "pixel_values": torch.ones(2, 3, 32, 32), "return_loss": True},
)
add_model(
    "Whisper ForConditionalGeneration",
    {
        **TWO_STACKS, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 30, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    },
    {"input_features": torch.ones(2, 8, 40), "labels": tokens()},
)  # fmt: skip
add_model(
    "Wav2Vec2 ForCTC",
    {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    },
    {"input_values": torch.linspace(-1, 1, 2000).reshape(2, 1000), "labels": tokens() % 30 + 1},
)  # fmt: skip


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))


@program("transformers generate()", reads_values="each token depends on the logits before")
def generate(place: str) -> torch.Tensor:
    model = llama().to(place).eval()
    start = torch.ones(1, 4, dtype=torch.long, device=place)
    return model.generate(start, max_new_tokens=5, do_sample=False, pad_token_id=0).float().sum()


@program("peft LoRA")
def adapters(place: str) -> torch.Tensor:
    import peft

    options = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = peft.get_peft_model(llama(), options).to(place)
    given, optimizer = tokens().to(place), torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(input_ids=given, labels=given).loss
        loss.backward()
        optimizer.step()
    return loss.detach()
