"""Data of the right shape for public programs: small, the same in each run, and without meaning."""

from __future__ import annotations

import gzip
import json
import random
import string
import struct
from pathlib import Path

__all__ = [
    "characters",
    "chats",
    "citations",
    "image_classes",
    "images",
    "images_for_super_resolution",
    "labelled_images",
    "language_model",
    "mnist",
    "preferences",
    "wikitext",
]

_WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "a",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
)


def mnist(folder: Path) -> None:
    """Write MNIST's four files, with 512 and 128 images of 28 x 28 pixels, packed and not."""
    folder.mkdir(parents=True)
    for name, count in (("train", 512), ("t10k", 128)):
        numbers = random.Random(count)  # noqa: S311 -- no secrets
        for suffix, header, content in (
            ("images-idx3-ubyte", struct.pack(">IIII", 2051, count, 28, 28), numbers.randbytes(count * 784)),
            ("labels-idx1-ubyte", struct.pack(">II", 2049, count), bytes(each % 10 for each in range(count))),
        ):
            (folder / f"{name}-{suffix}").write_bytes(header + content)
            (folder / f"{name}-{suffix}.gz").write_bytes(gzip.compress(header + content))


def images(folder: Path, count: int = 16, size: int = 300) -> None:
    """Write JPEG files of `size` x `size` pixels."""
    from PIL import Image  # type: ignore[import-not-found]  # with torchvision's programs only

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.effect_noise((size, size), 64).convert("RGB").save(folder / f"{number:03}.jpg")


def image_classes(folder: Path) -> None:
    """Write the folders `train` and `val` with two classes of images."""
    for part in ("train", "val"):
        for name in ("first", "second"):
            images(folder / part / name)


def images_for_super_resolution(folder: Path) -> None:
    """Write the folders of BSDS300."""
    for part in ("train", "test"):
        images(folder / "images" / part)


def wikitext(folder: Path) -> None:
    """Write `train.txt`, `valid.txt` and `test.txt`, of 6,000 and 1,000 words."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("train", 400), ("valid", 70), ("test", 70)):
        numbers = random.Random(lines)  # noqa: S311 -- no secrets
        text = "\n".join(" ".join(numbers.choices(_WORDS, k=15)) for _ in range(lines))
        (folder / f"{name}.txt").write_text(f"{text}\n")


def characters(path: Path) -> None:
    """Write a text of about 45,000 characters, which has each printable character of ASCII."""
    path.write_text("\n".join([string.printable, *_texts(1000)]))


def citations(folder: Path) -> None:
    """Write Cora's files: 2,708 nodes with 1,433 features in 7 classes, and 5,429 edges."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(0)  # noqa: S311 -- no secrets
    names = (
        "Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods", "Reinforcement_Learning",
        "Rule_Learning", "Theory",
    )  # fmt: skip
    with (folder / "cora.content").open("w") as file:
        for node in range(2708):
            marks = ["0"] * 1433
            for each in numbers.sample(range(1433), 18):
                marks[each] = "1"
            file.write(f"{node} {' '.join(marks)} {names[node % 7]}\n")
    with (folder / "cora.cites").open("w") as file:
        for _ in range(5429):
            file.write(f"{numbers.randrange(2708)} {numbers.randrange(2708)}\n")


def labelled_images(folder: Path) -> None:
    """Write images whose names begin with their class, as in the Oxford pets."""
    images(folder)
    for path in folder.glob("*.jpg"):
        path.rename(folder / f"{('cat', 'dog')[int(path.stem) % 2]}_{path.stem}.jpg")


def _texts(count: int) -> list[str]:
    numbers = random.Random(0)  # noqa: S311 -- no secrets
    return [" ".join(numbers.choices(_WORDS, k=12)) for _ in range(count)]


def _message(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def chats(path: Path) -> None:
    """Write 100 lines of JSON with a prompt and a completion as messages."""
    texts = _texts(200)
    lines = (
        {"prompt": _message("user", prompt), "completion": _message("assistant", answer)}
        for prompt, answer in zip(texts[::2], texts[1::2], strict=True)
    )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def preferences(path: Path) -> None:
    """Write 100 lines of JSON with a prompt, and the completions that are preferred and rejected, as messages."""
    texts = _texts(300)
    lines = (
        {
            "prompt": _message("user", prompt),
            "chosen": _message("assistant", good),
            "rejected": _message("assistant", bad),
        }
        for prompt, good, bad in zip(texts[::3], texts[1::3], texts[2::3], strict=True)
    )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def language_model(folder: Path) -> None:
    """Write a Llama of two layers, and a tokenizer of words with a template for chats."""
    import tokenizers
    import transformers

    names = ["<pad>", "</s>", "<unk>", "user", "assistant", *_WORDS]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 -- a word
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    tokenizer.chat_template = "{% for each in messages %}{{ each.role }} {{ each.content }} </s> {% endfor %}"
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
