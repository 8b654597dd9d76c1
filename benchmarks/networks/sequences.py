"""Networks for text and sound, of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.model import BenchmarkModel
from benchmarks.networks.exports import MakeModule, export, first_output

_VOCABULARY = 32_000


def _of_text(make: MakeModule, length: int) -> BenchmarkModel:
    shape = (1, length)
    return BenchmarkModel(
        lambda: export(make, {"tokens": shape}, are_tokens=True),
        lambda rng: {"tokens": rng.integers(1, _VOCABULARY, shape)},
    )


def _of_sound(make: MakeModule, shape: tuple[int, ...]) -> BenchmarkModel:
    return BenchmarkModel(
        lambda: export(make, {"sound": shape}), lambda rng: {"sound": rng.standard_normal(shape, np.float32)}
    )


def _make_distilbert() -> Any:
    from transformers import DistilBertConfig, DistilBertModel

    return first_output(DistilBertModel(DistilBertConfig(vocab_size=_VOCABULARY)))


def _make_gpt2() -> Any:
    from transformers import GPT2Config, GPT2Model

    return first_output(
        GPT2Model(GPT2Config(vocab_size=_VOCABULARY, n_embd=512, n_layer=8, n_head=8, use_cache=False))
    )


def _make_llama() -> Any:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8}
    return first_output(LlamaModel(LlamaConfig(vocab_size=_VOCABULARY, use_cache=False, **sizes)))


def _make_t5() -> Any:
    from transformers import T5Config, T5EncoderModel

    return first_output(T5EncoderModel(T5Config(vocab_size=_VOCABULARY, num_layers=6)))


def _make_wav2vec() -> Any:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    return first_output(Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=6)))


def _make_whisper() -> Any:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
    return first_output(WhisperEncoder(WhisperConfig(**sizes)))


SEQUENCES: dict[str, BenchmarkModel] = {
    "DistilBERT, 16 tokens": _of_text(_make_distilbert, 16),
    "GPT, 8 layers, 1 token": _of_text(_make_gpt2, 1),
    "GPT, 8 layers, 128 tokens": _of_text(_make_gpt2, 128),
    "LLaMA-like, 8 layers": _of_text(_make_llama, 64),
    "T5's encoder, 6 layers": _of_text(_make_t5, 128),
    "wav2vec 2.0, 6 layers": _of_sound(_make_wav2vec, (1, 32_000)),
    "Whisper-tiny's encoder": _of_sound(_make_whisper, (1, 80, 3000)),
}
