"""Packages over models of texts and speech: trainers, generation, adapters, quantized models, embeddings."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from packages.program import program, train
from packages.synthetic_models import language_model
from packages.training_loops import accelerator
from packages.transformers_models import GROUPED, TWO_STACKS, llama, tokens

TRAINER = "it is a Trainer of transformers"
DEPENDS = "each token depends on the logits before"


def examples(count: int = 12) -> list[dict[str, Any]]:
    """Return examples of several lengths."""
    return [{"input_ids": [1] * (4 + each % 5), "labels": [1] * (4 + each % 5)} for each in range(count)]


def small_tokenizer(folder: str) -> Any:
    """Return the tokenizer of the synthetic data."""
    import transformers

    language_model(Path(folder))
    return transformers.AutoTokenizer.from_pretrained(folder)


def options_for(kind: str, folder: str, **options: Any) -> Any:
    """Return arguments of a trainer that is silent and writes only to the folder."""
    import transformers
    import trl

    module = transformers if hasattr(transformers, kind) else trl
    given = {"per_device_train_batch_size": 2, "max_steps": 2, "report_to": [], "disable_tqdm": True, **options}
    return getattr(module, kind)(folder, **given)


@program("transformers Trainer, float16, evaluation, groups of one length", on_gpu_only=True, reads_values=TRAINER)
def evaluated(place: str) -> torch.Tensor:  # noqa: ARG001 -- it chooses
    import transformers

    accelerator()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = small_tokenizer(folder)
        options = options_for(
            "TrainingArguments", folder, fp16=True, eval_strategy="steps", eval_steps=1, save_strategy="no",
            train_sampling_strategy="group_by_length",
        )  # fmt: skip
        collator = transformers.DataCollatorForTokenClassification(tokenizer)
        trainer = transformers.Trainer(
            llama(), options, train_dataset=examples(), eval_dataset=examples(4), data_collator=collator
        )
        return torch.tensor(trainer.train().training_loss)


@program("transformers Seq2SeqTrainer, generation", on_gpu_only=True, reads_values=TRAINER)
def sequences(place: str) -> torch.Tensor:  # noqa: ARG001 -- as above
    import transformers

    accelerator()
    torch.manual_seed(0)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**TWO_STACKS, max_position_embeddings=64))
    with tempfile.TemporaryDirectory() as folder:
        options = options_for(
            "Seq2SeqTrainingArguments", folder, predict_with_generate=True, generation_max_length=8,
            eval_strategy="steps", eval_steps=2, save_strategy="no",
        )  # fmt: skip
        collator = transformers.DataCollatorForSeq2Seq(small_tokenizer(folder), model)
        trainer = transformers.Seq2SeqTrainer(
            model, options, train_dataset=examples(), eval_dataset=examples(4), data_collator=collator,
            compute_metrics=lambda found: {"length": float(found.predictions.shape[1])},
        )  # fmt: skip
        return torch.tensor(trainer.train().training_loss)


def generated(place: str, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    model, start = llama().to(place).eval(), torch.ones(2, 4, dtype=torch.long, device=place)
    return model.generate(start, max_new_tokens=5, min_new_tokens=5, pad_token_id=0, **options).float().mean()


@program("transformers generate(), sampling", reads_values=DEPENDS, on_gpu_only=True)
def sampling(place: str) -> torch.Tensor:
    return generated(place, do_sample=True, top_k=5, top_p=0.9)


@program("transformers generate(), beams", reads_values=DEPENDS)
def beams(place: str) -> torch.Tensor:
    return generated(place, num_beams=3, do_sample=False)


@program("transformers generate(), static cache", reads_values=DEPENDS)
def static_cache(place: str) -> torch.Tensor:
    return generated(place, do_sample=False, cache_implementation="static", disable_compile=True)


@program("transformers generate(), assisted", reads_values=DEPENDS)
def assisted(place: str) -> torch.Tensor:
    model, assistant = llama().to(place).eval(), llama().to(place).eval()
    start = torch.ones(1, 4, dtype=torch.long, device=place)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    return model.generate(start, assistant_model=assistant, **options).float().mean()


def preferences() -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets.Dataset.from_list([{"prompt": "the of", "chosen": " and to", "rejected": " in a is"}] * 8)


@program("trl DPOTrainer", on_gpu_only=True, reads_values=TRAINER)
def preferred(place: str) -> torch.Tensor:  # noqa: ARG001 -- it chooses
    import trl

    accelerator()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = small_tokenizer(folder)
        options = options_for("DPOConfig", folder, save_strategy="no")
        trainer = trl.DPOTrainer(
            llama(), llama(), args=options, train_dataset=preferences(), processing_class=tokenizer
        )
        return torch.tensor(trainer.train().training_loss)


@program("trl GRPOTrainer", on_gpu_only=True, reads_values=TRAINER)
def grouped_rewards(place: str) -> torch.Tensor:  # noqa: ARG001 -- as above
    import trl

    accelerator()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = small_tokenizer(folder)
        options = options_for("GRPOConfig", folder, save_strategy="no", num_generations=2, max_completion_length=6)

        def lengths(completions: list[str], **_: Any) -> list[float]:
            return [float(len(each)) for each in completions]

        trainer = trl.GRPOTrainer(
            llama(), lengths, args=options, train_dataset=preferences().select_columns("prompt"),
            processing_class=tokenizer,
        )  # fmt: skip
        return torch.tensor(trainer.train().training_loss)


@program("peft QLoRA", needs=("bitsandbytes",), on_gpu_only=True)
def quantized_adapters(place: str) -> torch.Tensor:
    import peft
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)
        quantization = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantization, device_map=place, dtype=torch.bfloat16
        )
    model = peft.prepare_model_for_kbit_training(model)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    loss = model(input_ids=tokens().to(place), labels=tokens().to(place)).loss
    loss.backward()
    return loss.detach()


@program("peft prompt tuning, DoRA", on_gpu_only=True)
def other_adapters(place: str) -> torch.Tensor:
    import peft

    torch.manual_seed(0)
    losses = []
    for options in (
        peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], use_dora=True),
        peft.IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[]),
    ):
        model = peft.get_peft_model(llama(), options).to(place)
        loss = model(input_ids=tokens().to(place), labels=tokens().to(place)).loss
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


@program("sentence_transformers", needs=("sentence_transformers",), reads_values="embeddings are read")
def sentences(place: str) -> torch.Tensor:
    import sentence_transformers
    import transformers
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        language_model(Path(folder))
        transformers.BertModel(transformers.BertConfig(**{**GROUPED, "vocab_size": 64})).save_pretrained(folder)
        model = sentence_transformers.SentenceTransformer(modules=[Transformer(folder), Pooling(32)], device=place)
    model.eval()
    pairs = [model.preprocess(["the of and", "to in"]), model.preprocess(["a is that", "for it"])]
    features = [
        {name: each.to(place) if isinstance(each, torch.Tensor) else each for name, each in pair.items()}
        for pair in pairs
    ]
    loss = losses.MultipleNegativesRankingLoss(model)(features, torch.zeros(2, device=place))
    loss.backward()
    model.encode(["the of", "and to in"], show_progress_bar=False)
    return loss.detach()


@program("whisper Whisper", needs=("whisper",))
def speech(place: str) -> torch.Tensor:
    torch.manual_seed(0)
    return train(speech_model(64), [torch.ones(2, 8, 40), tokens()], place)


@program("whisper decode(), beams and sampling", needs=("whisper",), on_gpu_only=True, reads_values=DEPENDS)
def decode_speech(place: str) -> torch.Tensor:
    import whisper

    torch.manual_seed(0)
    model = speech_model(51864).to(place).eval()  # the number of tokens of the English models
    for options in ({}, {"beam_size": 2}, {"temperature": 0.5, "best_of": 2}):
        heard = whisper.DecodingOptions(language="en", fp16=False, sample_len=6, **options)
        found = model.decode(torch.ones(1, 8, 40, device=place), heard)
    return torch.tensor(float(len(found)))


def speech_model(vocabulary: int) -> torch.nn.Module:
    """Return a small model of speech."""
    import whisper

    sizes = whisper.ModelDimensions(
        n_mels=8, n_audio_ctx=20, n_audio_state=32, n_audio_head=2, n_audio_layer=1, n_vocab=vocabulary,
        n_text_ctx=24, n_text_state=32, n_text_head=2, n_text_layer=1,
    )  # fmt: skip
    model = whisper.model.Whisper(sizes)
    torch.nn.init.zeros_(model.decoder.positional_embedding)  # which the package leaves as it finds the memory
    return model


@program("diffusers pipeline", on_gpu_only=True, reads_values="images are read")
def pipeline(place: str) -> torch.Tensor:
    import diffusers

    torch.manual_seed(0)
    model = diffusers.UNet2DModel(
        sample_size=16, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    run = diffusers.DDIMPipeline(model, diffusers.DDIMScheduler()).to(place)
    run.set_progress_bar_config(disable=True)
    found = run(batch_size=1, num_inference_steps=2, output_type="np").images
    return torch.tensor(float(found.size))
