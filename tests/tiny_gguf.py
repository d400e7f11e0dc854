"""Small GGUF files, written by the package `gguf` from `transformers`' models, as llama.cpp's converter would."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

TEXTS = [
    "The dog runs on the beach, and it's 1234 metres long; they've 56 dogs.",
    "def area(width, height):\n    return width * height  # 3.14\n",
    "Größe, naïve café, Привет мир, 你好世界 🙂🎉",
] * 3
LINES = [
    *TEXTS[:3],
    *(
        "",
        " ",
        "  two",
        "a  b   c\n\n\td",
        "IT'S WE'RE they'd",
        "1234567890 12 3",
        "x=10;y=[1,2]",
        "漢字かな交じり文 ١٢٣",
    ),
    *("👩‍👩‍👧‍👦 e\u0301 é", "\r\n CRLF \u00a0\u3000", "<|im_start|>user", "!!!???...(a)[b]"),
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = 3
SIZE = 320  # tokens
Entries = dict[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]


@cache
def trained(pattern: str | None = None, digits: bool = False, whole: bool = False) -> Any:
    """A byte-level BPE of the `tokenizers` library, whose words are cut by a pattern, or by GPT-2's."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE(ignore_merges=whole))
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    parts += [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    library.pre_tokenizer = pre_tokenizers.Sequence(parts)
    library.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    return library


def bpe_entries(pre: str = "gpt-2", library: Any = None) -> Entries:
    """What a file says of a byte-level BPE."""
    spec = json.loads((library or trained()).to_str())
    tokens = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].__getitem__)
    merges = [" ".join(merge) for merge in spec["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHATML,
    }


def sentencepiece_entries(*, prefix: bool) -> tuple[Any, dict[str, Any]]:
    """A model of sentencepiece's own, and what a file says of it."""
    import sentencepiece

    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=buffer,
        model_type="bpe",
        vocab_size=SIZE + 60,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        hard_vocab_limit=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())
    numbers = range(model.get_piece_size())
    types = [
        2 if model.is_unknown(n) else 3 if model.is_control(n) else 6 if model.is_byte(n) else 1 for n in numbers
    ]
    entries: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(n) for n in numbers],
        "tokenizer.ggml.scores": [model.get_score(n) for n in numbers],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_space_prefix": prefix,
        **dict.fromkeys(["tokenizer.ggml.merges", "tokenizer.ggml.pre", "tokenizer.chat_template"]),
    }
    return model, entries


LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "vocab_size": SIZE, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **LLAMA, "rope_theta": 5000.0},
    "llama-tied": {"model_type": "llama", **LLAMA, "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", **LLAMA, "attention_bias": True, "mlp_bias": True},
    "llama-linear": {"model_type": "llama", **LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {
        "model_type": "llama",
        **LLAMA,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"model_type": "mistral", **LLAMA, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **LLAMA, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **LLAMA, "head_dim": 32},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": SIZE, "n_positions": 128},
}


def theirs(name: str) -> Any:
    """A model of `transformers`' with random weights that have opinions."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    settings = dict(CONFIGS[name])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def converted(model: Any) -> tuple[Entries, Arrays]:
    """Entries and tensors of a model, as llama.cpp's converter would have them."""
    config = model.config
    name = {"mistral": "llama"}.get(config.model_type, config.model_type)
    heads = config.num_attention_heads
    entries: Entries = {
        "general.architecture": name,
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.feed_forward_length": 4 * config.hidden_size if name == "gpt2" else config.intermediate_size,
        f"{name}.attention.head_count": heads,
    }
    tensors: Arrays = {}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], config.num_hidden_layers)
    if name == "gpt2":
        entries[f"{name}.attention.layer_norm_epsilon"] = config.layer_norm_epsilon
    else:
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        rope = config.rope_parameters
        entries |= {
            f"{name}.attention.head_count_kv": config.num_key_value_heads,
            f"{name}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            f"{name}.attention.key_length": width,
            f"{name}.attention.value_length": width,
            f"{name}.rope.dimension_count": width,
            f"{name}.rope.freq_base": float(rope["rope_theta"]),
        }
        if rope["rope_type"] == "linear":
            entries |= {f"{name}.rope.scaling.type": "linear", f"{name}.rope.scaling.factor": rope["factor"]}
        if rope["rope_type"] == "llama3":
            entries[f"{name}.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
            plain = rope["rope_theta"] ** -(torch.arange(0, width, 2) / width)
            tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq).numpy()
    for key, tensor in model.state_dict().items():
        if config.tie_word_embeddings and key == "lm_head.weight":
            continue
        value = tensor.detach()
        if name == "gpt2" and key.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            value = value.t()
        if name == "llama" and key.split(".")[-2] in ("q_proj", "k_proj"):
            count = heads if "q_proj" in key else config.num_key_value_heads
            value = value.reshape(count, 2, len(value) // count // 2, *value.shape[1:]).swapaxes(1, 2)
            value = value.reshape(tensor.shape)
        found = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert found is not None, key
        tensors[found] = value.contiguous().numpy()
    return entries, tensors


def write(path: Path, entries: Mapping[str, Any], tensors: Mapping[str, Any], kind: str = "F32") -> Path:
    """A file with these; matrices as `kind`, where a row is blocks of it."""
    writer = gguf.GGUFWriter(str(path), entries.get("general.architecture", "none"))
    if "general.architecture" not in entries:
        writer.kv_data[0].pop("general.architecture")
    put: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in entries.items():
        if key != "general.architecture":
            put[type(value)](key, value)
    for name, array in tensors.items():
        chosen = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(array.astype(np.float32), chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_file(path: Path, name: str = "llama", kind: str = "F32", **more: Any) -> Path:
    """A whole model with a tokenizer; `more` are entries in place of its own, None: left out."""
    entries, tensors = converted(theirs(name))
    said = {**entries, **bpe_entries(), **more}
    return write(path, {key: value for key, value in said.items() if value is not None}, tensors, kind)


def hf_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([list(ids)])).logits[0]
    return found
