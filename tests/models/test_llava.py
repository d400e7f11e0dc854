"""LLaVA: Hugging Face's folders both ways, writing with pictures, and image tokens that do not fit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from legato.config import describe, validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, FolderError, LegatoError
from legato.folders.model_folder import load_model, refusal, save_model
from legato.models.base import Sizes
from legato.models.llava import LlavaConfig, LlavaModel
from legato.models.published.llava import USUAL_TEXT
from legato.nn.readout import clear_padding
from tiny_published import change

V, EOS, IMAGE, PATCHES = 40, 0, 7, 4
CLIP: dict[str, Any] = {"layers": 2, "width": 12, "heads": 2, "feedforward": 20, "image": 8, "patch": 4}
LLAMA: dict[str, Any] = {"name": "llama", "layers": 2, "width": 16, "heads": 2, "kv_heads": 1, "length": 48}
GPT2: dict[str, Any] = {"name": "gpt2", "layers": 1, "width": 12, "heads": 2, "length": 48, "dropout": 0.0}
RESNET: dict[str, Any] = {"name": "resnet", "embedding": 8, "widths": [8, 16], "depths": [1, 1]}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"text": GPT2, "projector": "linear"},
    "resnet": {"vision": RESNET, "text": {**LLAMA, "tied": True}},
    "whole": {"whole": True, "layer": -1},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str = "llama", size: int = V, double: bool = True, **settings: Any) -> LlavaModel:
    """A small model with weights large enough to have opinions."""
    torch.manual_seed(0)
    given = {"vision": CLIP, "text": LLAMA, "image_token": IMAGE, **KINDS[kind], **settings}
    made = LlavaModel(validate(LlavaConfig, given), Sizes(size)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    clear_padding(made.text.embedding)  # type: ignore[arg-type]
    clear_padding(made.text.output)
    return made.double() if double else made


def pictures(count: int, seed: int = 0, side: int = 8) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed)).double()


def images_of(model: LlavaModel) -> int:
    side = 8 if model.config.vision.name == "clip-vision" else 16
    return model.patches_of(side, side)


def batch_of(model: LlavaModel, prompts: list[list[int]], counts: list[int], seed: int = 0) -> Batch:
    """Prompts, of which those with pictures begin with their image tokens."""
    side = 8 if model.config.vision.name == "clip-vision" else 16
    rows = [
        [model.image_token] * (count * images_of(model)) + row for row, count in zip(prompts, counts, strict=True)
    ]
    owners = [row for row, count in enumerate(counts) for _ in range(count)]
    drawn = pictures(len(owners), seed, side).to(next(model.parameters()).dtype)
    images = Inputs(values=drawn) if owners else None
    return Batch(Inputs.of(rows), images=images, image_rows=torch.tensor(owners) if owners else None)


def row_of(batch: Batch, row: int) -> Batch:
    """One row alone, with its pictures and without padding."""
    [*parts] = batch.split(batch.rows)
    part = parts[row]
    length = part.inputs.token_ids.shape[1] if part.inputs.lengths is None else int(part.inputs.lengths[0])
    part.inputs = Inputs(part.inputs.token_ids[:, :length])
    return part


def listed_prompts(batch: Batch) -> list[list[int]]:
    return [row_of(batch, row).inputs.token_ids[0].tolist() for row in range(batch.rows)]


@torch.no_grad()
def logits_of(model: LlavaModel, batch: Batch) -> Tensor:
    return model.readout(model(batch).hidden)  # (B, T, V)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


PROMPTS = [[3, 9, 4, 5, 6], [8, 2], [11, 12, 13, 14, 15, 16, 17]]
COUNTS = [1, 2, 0]


# --- reading and writing ---------------------------------------------------------------------------


@every_kind
def test_a_row_is_read_alone_as_beside_others_with_other_pictures(kind: str) -> None:
    model = build(kind)
    batch = batch_of(model, PROMPTS, COUNTS)
    together = logits_of(model, batch)
    for row, prompt in enumerate(listed_prompts(batch)):
        close(together[row, : len(prompt)], logits_of(model, row_of(batch, row))[0])


@every_kind
def test_step_by_step_gives_what_the_whole_pass_gives(kind: str) -> None:
    model = build(kind)
    batch, more = batch_of(model, PROMPTS, COUNTS), torch.tensor([[9, 1, 2], [5, 4, 3], [3, 3, 8]])
    with torch.no_grad():
        state = model.start(3, 40, model.encode(batch))
        found = [model.prefill(batch.inputs, state)] + [model.step(tokens, state) for tokens in more.t()]
    for row, prompt in enumerate(listed_prompts(batch)):
        alone = row_of(batch, row)
        alone.inputs = Inputs(torch.tensor([[*prompt, *more[row].tolist()]]))
        close(torch.stack([logits[row] for logits in found]), logits_of(model, alone)[0, len(prompt) - 1 :])


@every_kind
def test_searching_prompts_with_pictures_together_equals_searching_each_alone(kind: str) -> None:
    model = build(kind)
    batch = batch_of(model, PROMPTS, COUNTS)
    options = SearchOptions(search="beam", beams=3, max_tokens=6)
    with torch.no_grad():
        together = search(model, listed_prompts(batch), options, eos=EOS, memory=model.encode(batch))
        for row, prompt in enumerate(listed_prompts(batch)):
            alone = search(model, [prompt], options, eos=EOS, memory=model.encode(row_of(batch, row)))
            assert [h.tokens for h in alone[0]] == [h.tokens for h in together[row]]


@every_kind
def test_other_pictures_give_other_words_behind_them_and_in_their_row_alone(kind: str) -> None:
    model = build(kind)
    one, other = (batch_of(model, PROMPTS, COUNTS, seed) for seed in (0, 1))
    changed = (logits_of(model, one) - logits_of(model, other)).abs().amax((1, 2))
    assert (changed > 1e-3).tolist() == [True, True, False]


def test_pictures_stand_where_their_tokens_are_in_order() -> None:
    model = build()
    ids = torch.tensor([[3, *[IMAGE] * PATCHES, 5, *[IMAGE] * PATCHES, 9]])
    batch = Batch(Inputs(ids), images=Inputs(values=pictures(2)), image_rows=torch.tensor([0, 0]))
    patches = model.encode(batch)
    assert patches is not None
    found = model.vectors_of(batch.inputs, patches)[0]
    close(found[1:5], patches.vectors[0])
    close(found[6:10], patches.vectors[1])
    close(found[[0, 5, 10]], model.text.embedding(torch.tensor([3, 5, 9])))


def test_padding_that_is_the_image_token_is_no_picture() -> None:
    model = build()
    batch = batch_of(model, PROMPTS, COUNTS)
    expected = logits_of(model, batch)
    lengths = batch.inputs.lengths
    assert lengths is not None
    beyond = torch.arange(batch.inputs.token_ids.shape[1]) >= lengths[:, None]
    assert beyond.any()
    batch.inputs.ids = batch.inputs.token_ids.masked_fill(beyond, IMAGE)
    close(logits_of(model, batch)[~beyond], expected[~beyond])


def test_without_pictures_it_is_its_language_model() -> None:
    model, ids = build(), torch.tensor([[3, 4, 5, 6]])
    close(model(Batch(Inputs(ids))).hidden, model.text(Batch(Inputs(ids))).hidden)
    assert model.max_length == 48
    with pytest.raises(LegatoError, match="a sequence of 49 tokens is too long"):
        model(Batch(Inputs(torch.ones(1, 49, dtype=torch.long))))


NO_PICTURE = r"row 1 has 4 image tokens and no picture; give it one \(--image\), or leave the token out of its text"


@pytest.mark.parametrize(
    ("tokens", "owners", "message"),
    [
        (3, [0], "row 1 has 3 image tokens for 1 pictures of 4 patches each; each patch needs one"),
        (4, [0, 0], "row 1 has 4 image tokens for 2 pictures of 4 patches each; each patch needs one"),
        (8, [0], "row 1 has 8 image tokens for 1 pictures of 4 patches each; each patch needs one"),
        (
            4,
            [],
            NO_PICTURE,
        ),
        (
            4,
            [1],
            NO_PICTURE,
        ),
        (0, [0], "row 1 has 0 image tokens for 1 pictures of 4 patches each; each patch needs one"),
        (4, [2], r"pictures come in the order of their rows, 0 to 1, not \[2\]"),
        (4, [1, 0], r"pictures come in the order of their rows, 0 to 1, not \[1, 0\]"),
    ],
)
def test_image_tokens_that_are_not_as_many_as_patches_are_refused(
    tokens: int, owners: list[int], message: str
) -> None:
    model = build()
    inputs = Inputs.of([[*[IMAGE] * tokens, 3, 4], [5, 6, 8]])
    batch = Batch(inputs)
    if owners:
        batch = Batch(inputs, images=Inputs(values=pictures(len(owners))), image_rows=torch.tensor(owners))
    with pytest.raises(LegatoError, match=f"^{message}$"):
        model(batch)
    state = model.start(2, 20, model.encode(batch))
    with pytest.raises(LegatoError, match=f"^{message}$"):
        model.prefill(inputs, state)


# --- training --------------------------------------------------------------------------------------


def test_every_part_gets_a_gradient_and_a_frozen_tower_none() -> None:
    model = build(layer=-1).train()
    batch = batch_of(model, PROMPTS, COUNTS)
    model.readout(model(batch).hidden).logsumexp(-1).sum().backward()
    missing = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert missing == {"vision.norm.weight", "vision.norm.bias"}  # of the pooled picture, which nobody reads
    model.zero_grad()
    model.vision.requires_grad_(False)
    assert not model.train().vision.training
    assert model.text.training
    model.readout(model(batch).hidden).logsumexp(-1).sum().backward()
    assert all(parameter.grad is None for parameter in model.vision.parameters())
    assert all(parameter.grad.any() for parameter in model.projector.parameters())


def test_its_parts_are_the_models_that_its_settings_name() -> None:
    model = build()
    assert model.parts == {"vision": model.vision, "text": model.text}
    assert set(LlavaModel.part_names) == set(model.parts)
    assert model.token_table is model.text.embedding
    assert model.can_generate


def refused(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(LlavaConfig, settings, "model")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_parts_that_will_not_do_are_refused() -> None:
    assert "bert is no decoder; use gpt2 or llama" in refused(text="bert")
    assert "llama reads no pictures" in refused(vision="llama")
    assert "layer=-4, but vision has 0 to 2, or -3 to -1" in refused(vision=CLIP, layer=-4)
    assert "layer=-2: of a convolutional network the last layer is read" in refused(vision=RESNET, layer=-2)
    with pytest.raises(ConfigError, match=r"model\.image_token=40, but the vocabulary has 0 to 39"):
        build(image_token=40)


def test_settings_without_a_name_are_of_clip_and_llama() -> None:
    config = validate(LlavaConfig, {"vision": {"layers": 3}, "text": {"theta": 5.0}})
    assert (config.vision.name, config.text.name) == ("clip-vision", "llama")
    assert build(image_token=None).image_token == V - 1
    keys = {row.key for row in describe(LlavaConfig, "model")}
    assert {"model.vision.patch", "model.text.theta", "model.projector"} <= keys


# --- folders ---------------------------------------------------------------------------------------


def tokenizer() -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(name="word"), ["a red dog saw a big cat and ran off\n"])


def save(folder: Path, model: LlavaModel, held: Tokenizer) -> Processors:
    processors = Processors(held, others={"image": ImageProcessor(size=(8, 8))})
    save_model(folder, model, processors, task="visual-chat", about={}, card="# it sees\n")
    return processors


def small_batch(model: LlavaModel, size: int) -> Batch:
    prompts = [[1 + number % (IMAGE - 1) for number in row] for row in PROMPTS]
    assert size > IMAGE
    return batch_of(model, prompts, COUNTS)


@every_kind
def test_a_folder_gives_back_the_model_that_was_saved(kind: str, tmp_path: Path) -> None:
    held = tokenizer()
    model = build(kind, size=held.size, double=False)
    processors = save(tmp_path, model, held)
    again = load_model(tmp_path)
    assert again.task == "visual-chat"
    assert again.processors.fingerprints() == processors.fingerprints()
    assert isinstance(again.module, LlavaModel)
    assert again.module.image_token == IMAGE
    batch = small_batch(model, held.size)
    torch.testing.assert_close(logits_of(again.module, batch), logits_of(model, batch))
    assert (refusal(model) is None) == (kind in ("llama", "whole"))


# --- Hugging Face's ----------------------------------------------------------------------------------

THEIR_CLIP = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "image_size": 8,
    "patch_size": 4,
}
THEIR_LLAMA = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}


def theirs(size: int, text: str = "Llama", vision: dict[str, Any] | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    own = {key: options.pop(key) for key in ("tie_word_embeddings", "rms_norm_eps") if key in options}
    config = transformers.LlavaConfig(
        text_config=getattr(transformers, f"{text}Config")(**THEIR_LLAMA, vocab_size=size, **own),
        vision_config=transformers.CLIPVisionConfig(**THEIR_CLIP, **(vision or {})),
        **{"image_token_index": IMAGE, **options},
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("kind", USUAL_TEXT)
def test_what_a_folder_leaves_out_is_what_theirs_has(kind: str) -> None:
    theirs = transformers.AutoConfig.for_model(kind).to_dict()
    assert {key: theirs[key] for key in USUAL_TEXT[kind]} == USUAL_TEXT[kind]


def their_folder(folder: Path, other: Any, held: Tokenizer) -> LlavaModel:
    other.save_pretrained(folder)
    held.save(folder)
    ImageProcessor(size=(8, 8)).save(folder)
    loaded = load_model(folder)
    assert (loaded.task, loaded.ends) == ("visual-chat", (EOS,))
    assert isinstance(loaded.module, LlavaModel)
    return loaded.module


@torch.no_grad()
def same_logits(ours: LlavaModel, other: Any, size: int) -> None:
    batch = small_batch(ours, size)
    assert batch.images is not None
    assert batch.inputs.lengths is not None
    ids, inside = (
        batch.inputs.token_ids,
        torch.arange(batch.inputs.token_ids.shape[1]) < batch.inputs.lengths[:, None],
    )
    # Padding is no image token to them, either.
    expected = other(input_ids=ids, attention_mask=inside.long(), pixel_values=batch.images.content).logits
    torch.testing.assert_close(logits_of(ours, batch)[inside], expected[inside], rtol=1e-4, atol=1e-4)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "multimodal_projector_bias": False},
    {"tie_word_embeddings": True, "projector_hidden_act": "relu"},
    {"vision": {"hidden_act": "gelu", "layer_norm_eps": 1e-3}, "rms_norm_eps": 1e-3, "vision_feature_layer": 1},
    {"text": "Qwen2"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_their_folder_gives_their_logits(options: dict[str, Any], tmp_path: Path) -> None:
    held = tokenizer()
    other = theirs(held.size, **options)
    ours = their_folder(tmp_path, other, held)
    same_logits(ours, other, held.size)
    assert refusal(ours) is None


def test_folders_of_other_versions_give_the_same(tmp_path: Path) -> None:
    held = tokenizer()
    other = theirs(held.size)
    ours = their_folder(tmp_path, other, held)
    weights = load_file(tmp_path / "model.safetensors")
    older = {name.replace("vision_tower.", "vision_tower.vision_model."): tensor for name, tensor in weights.items()}
    in_memory = {
        "language_model.lm_head.": "lm_head.",
        "language_model.model.": "model.language_model.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    }
    newer = {
        next(new + name.removeprefix(old) for old, new in in_memory.items() if name.startswith(old)): tensor
        for name, tensor in weights.items()
    }
    for names in (older, newer):
        assert names.keys().isdisjoint({name for name in weights if "embeddings" in name})
        save_file(names, tmp_path / "model.safetensors")
        again = load_model(tmp_path).module
        assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in again.state_dict().items())


def test_a_readout_that_is_the_embedding_may_be_there_twice(tmp_path: Path) -> None:
    held = tokenizer()
    ours = their_folder(tmp_path, theirs(held.size, tie_word_embeddings=True), held)
    assert ours.config.text.model_dump()["tied"]
    weights = load_file(tmp_path / "model.safetensors")
    table, readout = weights["language_model.model.embed_tokens.weight"], "language_model.lm_head.weight"
    save_file({**weights, readout: table.clone()}, tmp_path / "model.safetensors")
    assert load_model(tmp_path).module.config == ours.config
    save_file({**weights, readout: table + 1}, tmp_path / "model.safetensors")  # it is another one
    again = load_model(tmp_path).module
    assert isinstance(again, LlavaModel)
    torch.testing.assert_close(again.text.output.weight[: held.size], table + 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"whole": True, "layer": 1, "bias": False, "activation": "gelu-tanh"},
        {"text": {**LLAMA, "tied": True}, "image_token": None},
        {"text": {**LLAMA, "family": "mistral", "window": 9}},
    ],
)
def test_our_folder_gives_their_model_our_logits(options: dict[str, Any], tmp_path: Path) -> None:
    held = tokenizer()
    ours = build(size=held.size, double=False, **options)
    save(tmp_path, ours, held)
    other = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    assert type(other).__name__ == "LlavaForConditionalGeneration"
    assert other.config.image_token_id == ours.image_token
    same_logits(ours, other, held.size)
    again = load_model(tmp_path).module
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_written_of_pictures_is_what_their_generate_writes(beams: int, tmp_path: Path) -> None:
    held = tokenizer()
    other = theirs(held.size)
    ours = their_folder(tmp_path, other, held)
    batch = batch_of(ours, [[1, 2 + row % 4, 3] for row in range(6)], [1] * 6)
    assert batch.images is not None
    options = SearchOptions(
        search="beam" if beams > 1 else "greedy",
        beams=beams if beams > 1 else None,
        max_tokens=10,
        length_penalty=1.0,
    )
    with torch.no_grad():
        found = search(ours, listed_prompts(batch), options, eos=EOS, memory=ours.encode(batch))
        expected = other.generate(
            input_ids=batch.inputs.token_ids,
            attention_mask=torch.ones_like(batch.inputs.token_ids),
            pixel_values=batch.images.content,
            max_new_tokens=10,
            num_beams=beams,
            do_sample=False,
            pad_token_id=EOS,
        )
    start = batch.inputs.token_ids.shape[1]
    written = [row[start:].tolist() for row in expected]
    for best, row in zip(found, written, strict=True):
        assert best[0].tokens == (row[: row.index(EOS)] if EOS in row else row)
    assert len({tuple(best[0].tokens) for best in found}) > 1


def test_parts_of_other_kinds_are_refused(tmp_path: Path) -> None:
    held = tokenizer()
    other = theirs(held.size)
    their_folder(tmp_path, other, held)
    change(tmp_path / "config.json", vision_config={"model_type": "siglip_vision_model"})
    with pytest.raises(FolderError, match="a llama that sees by a siglip_vision_model; Legato has LLaVA of llama"):
        load_model(tmp_path)
    change(tmp_path / "config.json", vision_config=THEIR_CLIP, text_config={**THEIR_LLAMA, "hidden_size": "wide"})
    with pytest.raises(FolderError, match=r"config\.json.*hidden_size"):
        load_model(tmp_path)
