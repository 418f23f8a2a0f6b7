"""Texts, tables and graphs for public programs."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "characters",
    "chats",
    "choices",
    "citations",
    "classified_texts",
    "graph",
    "instructions",
    "metric",
    "named_words",
    "preferences",
    "questions",
    "summaries",
    "translations",
    "wikitext",
]

WORDS = (
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


def wikitext(folder: Path) -> None:
    """Write `train.txt`, `valid.txt` and `test.txt`, of 6,000 and 1,000 words."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("train", 400), ("valid", 70), ("test", 70)):
        numbers = random.Random(lines)  # noqa: S311 -- no secrets
        text = "\n".join(" ".join(numbers.choices(WORDS, k=15)) for _ in range(lines))
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


def _texts(count: int) -> list[str]:
    numbers = random.Random(0)  # noqa: S311 -- no secrets
    return [" ".join(numbers.choices(WORDS, k=12)) for _ in range(count)]


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


def write_lines(path: Path, lines: Iterable[object]) -> None:
    """Write lines of JSON."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def classified_texts(path: Path) -> None:
    """Write a table of 40 sentences in two classes."""
    lines = [f"{text},{number % 2}" for number, text in enumerate(_texts(40))]
    path.write_text("\n".join(["sentence,label", *lines, ""]))


def named_words(path: Path) -> None:
    """Write 40 lines of JSON with words and their tags."""
    texts = [text.split() for text in _texts(40)]
    write_lines(
        path, ({"tokens": words, "ner_tags": [("O", "B-PER")[len(word) % 2] for word in words]} for words in texts)
    )


def questions(path: Path) -> None:
    """Write 20 questions with contexts and answers, in the format of SQuAD."""
    texts = _texts(20)
    write_lines(path, [{"version": "1", "data": [
        {"id": str(number), "title": "", "context": text, "question": "what is that",
         "answers": {"text": [text.split()[0]], "answer_start": [0]}}
        for number, text in enumerate(texts)
    ]}])  # fmt: skip


def choices(path: Path) -> None:
    """Write a table of 20 beginnings of sentences with four ends each, in the format of SWAG."""
    texts = _texts(80)
    names = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
    rows = [f"0,0,a,{texts[each]},the,gold,{','.join(texts[each : each + 4])},{each % 4}" for each in range(0, 80, 4)]
    path.write_text("\n".join([names, *rows, ""]))


def translations(path: Path) -> None:
    """Write 20 lines of JSON with sentences in two languages."""
    write_lines(path, ({"translation": {"en": text, "ro": text}} for text in _texts(20)))


def summaries(path: Path) -> None:
    """Write 20 lines of JSON with texts and summaries."""
    write_lines(path, ({"text": text, "summary": " ".join(text.split()[:4])} for text in _texts(20)))


def instructions(path: Path) -> None:
    """Write 40 lines of JSON with instructions, inputs and outputs."""
    write_lines(path, ({"instruction": text, "input": "", "output": text, "text": text} for text in _texts(40)))


_METRIC = """
import datasets
import evaluate

text, number = datasets.Value("string"), datasets.Value("int32")
answers = {"text": datasets.Sequence(text), "answer_start": datasets.Sequence(number)}
formats = [
    {"predictions": number, "references": number},
    {"predictions": text, "references": text},
    {"predictions": text, "references": datasets.Sequence(text)},
    {"predictions": datasets.Sequence(text), "references": datasets.Sequence(text)},
    {"predictions": {"id": text, "prediction_text": text}, "references": {"id": text, "answers": answers}},
]


class Constant(evaluate.Metric):
    def _info(self):
        features = [datasets.Features(each) for each in formats]
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, **options):
        names = "accuracy", "score", "f1", "exact_match"
        return {**dict.fromkeys(names, 0.5), **{f"overall_{each}": 0.5 for each in ("precision", "recall", *names)}}
"""


def metric(path: Path) -> None:
    """Write a metric of the package evaluate, which has the same value for all predictions."""
    path.write_text(_METRIC)


def graph(folder: Path) -> None:
    """Write the files of a Planetoid graph: 1,000 nodes with 200 features in 7 classes, and 3,000 edges."""
    import pickle

    import numpy as np
    import scipy.sparse

    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    features = scipy.sparse.csr_matrix((numbers.random((1000, 200)) < 0.1).astype(np.float32))
    classes = np.eye(7, dtype=np.int32)[np.arange(1000) % 7]
    neighbours: dict[int, list[int]] = {node: [] for node in range(1000)}
    for first, second in numbers.integers(0, 1000, (3000, 2)).tolist():
        neighbours[first].append(second)
        neighbours[second].append(first)
    parts = {
        "x": features[:140], "y": classes[:140], "allx": features[:800], "ally": classes[:800], "tx": features[800:],
        "ty": classes[800:], "graph": neighbours,
    }  # fmt: skip
    for name, part in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    (folder / "ind.cora.test.index").write_text("".join(f"{each}\n" for each in range(800, 1000)))
