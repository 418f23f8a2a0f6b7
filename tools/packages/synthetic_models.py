"""Models without meaning for public programs that load one, with their tokenizers."""

from __future__ import annotations

import json
import string
from pathlib import Path

from packages.synthetic_texts import WORDS, characters

__all__ = [
    "diffusion_pipeline",
    "gpt_fast_model",
    "image_denoiser",
    "image_model",
    "language_model",
    "masked_model",
    "timm_weights",
    "torchvision_weights",
    "translation_model",
]


def _tokenizer(folder: Path, **special: str) -> int:
    """Write a tokenizer of words with a template for chats, and return the size of its vocabulary."""
    import tokenizers
    import transformers

    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", **special}
    names = [*special.values(), "user", "assistant", *WORDS]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 -- a word
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if "cls_token" in special:
        ends = [(each, vocabulary[each]) for each in (special["sep_token"], special["cls_token"])]
        words.post_processor = tokenizers.processors.BertProcessing(*ends)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **special)
    tokenizer.chat_template = "{% for each in messages %}{{ each.role }} {{ each.content }} </s> {% endfor %}"
    tokenizer.save_pretrained(folder)
    return len(vocabulary)


def language_model(folder: Path) -> None:
    """Write a Llama of two layers, and a tokenizer of words with a template for chats."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=_tokenizer(folder), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def masked_model(folder: Path) -> None:
    """Write a BERT of two layers, and its tokenizer."""
    import transformers

    size = _tokenizer(folder, cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")  # noqa: S106 -- words
    config = transformers.BertConfig(
        vocab_size=size, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)


def translation_model(folder: Path) -> None:
    """Write a T5 of two layers, and its tokenizer."""
    import transformers

    config = transformers.T5Config(
        vocab_size=_tokenizer(folder), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)


def image_model(folder: Path) -> None:
    """Write a ViT of two layers with its image processor."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=16
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)


def diffusion_pipeline(folder: Path) -> None:
    """Write a Stable Diffusion pipeline with few layers."""
    import diffusers
    import transformers

    letters = [*string.ascii_lowercase, *(f"{each}</w>" for each in string.ascii_lowercase)]
    names = [*letters, "th</w>", "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    vocabulary.write_text(json.dumps({name: number for number, name in enumerate(names)}))
    merges.write_text("#version: 0.2\nt h</w>\n")
    tokenizer = transformers.CLIPTokenizer(str(vocabulary), str(merges), model_max_length=16)
    text = transformers.CLIPTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=16, bos_token_id=53, eos_token_id=54, pad_token_id=54,
    )  # fmt: skip
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8, cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=8,
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2, norm_num_groups=8,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4,
    )  # fmt: skip
    diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=transformers.CLIPTextModel(text), tokenizer=tokenizer, unet=unet,
        scheduler=diffusers.DDPMScheduler(), safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    ).save_pretrained(folder)  # fmt: skip


def image_denoiser(folder: Path) -> None:
    """Write the configuration of a UNet with few layers."""
    import diffusers

    diffusers.UNet2DModel(
        sample_size=32, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).save_config(folder)  # fmt: skip


def torchvision_weights(path: Path) -> None:
    """Write weights of a torchvision model, whose name is the first part of the file's, each with one stored value."""
    import torch
    import torchvision

    weights = torchvision.models.get_model(path.name.split("-")[0]).state_dict()
    torch.save({name: torch.ones((), dtype=each.dtype).expand(each.shape) for name, each in weights.items()}, path)


def timm_weights(folder: Path) -> None:
    """Write the weights of a timm model as the cache of Hugging Face has them: the folder is models--timm--NAME."""
    import safetensors.torch  # type: ignore[import-not-found]  # with programs that use it only
    import timm

    commit = "0" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit)
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    model = timm.create_model(folder.name.rpartition("--")[2].partition(".")[0])
    safetensors.torch.save_file(model.state_dict(), snapshot / "model.safetensors")


def gpt_fast_model(folder: Path) -> None:
    """Write a checkpoint of gpt-fast's smallest model, with one stored value for each weight, and its tokenizer."""
    import sentencepiece  # type: ignore[import-not-found]  # with gpt-fast's programs only
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    characters(text)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "tokenizer"), vocab_size=200, byte_fallback=False,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    width, hidden = 288, 768
    shapes = {"tok_embeddings.weight": (32000, width), "norm.weight": (width,), "output.weight": (32000, width)}
    for layer in range(6):
        shapes |= {
            f"layers.{layer}.attention.wqkv.weight": (3 * width, width),
            f"layers.{layer}.attention.wo.weight": (width, width),
            f"layers.{layer}.feed_forward.w1.weight": (hidden, width),
            f"layers.{layer}.feed_forward.w3.weight": (hidden, width),
            f"layers.{layer}.feed_forward.w2.weight": (width, hidden),
            f"layers.{layer}.ffn_norm.weight": (width,),
            f"layers.{layer}.attention_norm.weight": (width,),
        }
    weights = {name: torch.full((), 0.01).expand(shape) for name, shape in shapes.items()}
    weights["output.weight"] = torch.full((32000, width), -10.0)
    weights["output.weight"][:20] = 10.0  # the tokens of the tokenizer are the likely ones
    torch.save(weights, folder / "model.pth")
