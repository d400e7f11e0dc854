"""CLIP: Hugging Face's folders both ways, where a text's vector is read, the symmetric loss, classes by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import legato
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.data.text.text_reader import with_eos
from legato.data.text.tokenizers import Tokenizer
from legato.data.text.vocabularies import TokenizerConfig
from legato.errors import LegatoError
from legato.evaluation.retrieval import recalls
from legato.folders.loaded import Loaded
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.clip import CLIPConfig, CLIPModel, CLIPVision, class_prompts
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.models.published.clip import CLIP
from legato.nn.readout import clear_padding
from legato.training.adapt import AdaptConfig, Base, adapt
from tiny_published import byte_level, change, write

START, END = "<|startoftext|>", "<|endoftext|>"
TEXTS = ["the cat sat on the mat", "rain # cat", "one more dog by the world"]  # the token # has the number 2
VISION: dict[str, Any] = {
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 36,
    "image_size": 12,
    "patch_size": 4,
}
TEXT: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}


def pictures(rows: int = 3, size: tuple[int, int] = (12, 12)) -> Tensor:
    return torch.randn(rows, 3, *size, generator=torch.Generator().manual_seed(0))


def their_tokenizer(folder: Path) -> Any:
    """CLIP's kind of tokenizer: pieces of bytes between a start and an end, and padding that is the end again."""
    library = byte_level([])
    library.add_special_tokens([START, END])  # behind all others: the end has the highest number
    marks = [(token, library.token_to_id(token)) for token in (START, END)]
    library.post_processor = tokenizers.processors.TemplateProcessing(
        f"{START} $A {END}", f"{START} $A {END} {START} $B {END}", marks
    )
    library.save(str(folder / "tokenizer.json"))
    names = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    return transformers.AutoTokenizer.from_pretrained(folder)


def their_folder(folder: Path, text: dict[str, Any] | None = None, **vision: Any) -> tuple[Any, Any]:
    """`CLIPModel` with everything beside it, and its tokenizer."""
    folder.mkdir(exist_ok=True)
    tokenizer = their_tokenizer(folder)
    ids = {"vocab_size": len(tokenizer), "eos_token_id": len(tokenizer) - 1, "bos_token_id": len(tokenizer) - 2}
    config = transformers.CLIPConfig(
        text_config={**TEXT, **ids, **(text or {})}, vision_config={**VISION, **vision}, projection_dim=16
    )
    torch.manual_seed(0)
    model = transformers.CLIPModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.logit_scale.data.fill_(4.0)
    model.save_pretrained(folder)
    transformers.CLIPImageProcessor(size={"shortest_edge": 12}, crop_size=12).save_pretrained(folder)
    return model, tokenizer


def read(loaded: Loaded, texts: list[str]) -> Inputs:
    rows = loaded.module.config.text_reader(loaded.tokenizer).texts(texts)
    return Inputs.of([row.ids for row in rows])


def clip_of(loaded: Loaded) -> CLIPModel:
    assert isinstance(loaded.module, CLIPModel)
    return loaded.module


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def check_equal(ours: CLIPModel, inputs: Inputs, theirs: Any, tokenizer: Any) -> None:
    expected = theirs(
        **tokenizer(TEXTS, padding=True, return_tensors="pt"), pixel_values=pictures(), output_hidden_states=True
    )
    images, texts = ours.image_vectors(Inputs(values=pictures())), ours.text_vectors(inputs)
    same(images, expected.image_embeds)
    same(texts, expected.text_embeds)
    same(ours.logits(images, texts), expected.logits_per_image)
    states = ours.vision.states(Batch(Inputs(values=pictures())))
    for state, their in zip(states, expected.vision_model_output.hidden_states, strict=True):
        same(state, their)
    features = theirs.get_image_features(pictures()).pooler_output
    same(ours.vision_projection(ours.vision.pooled(states[-1])), features)
    features = theirs.get_text_features(**tokenizer(TEXTS, padding=True, return_tensors="pt")).pooler_output
    same(ours.text_projection(ours.text.pooled(ours.text.read(Batch(inputs)), inputs)), features)


OPTIONS = [
    {},
    {"eos_token_id": 2},  # the first folders: it is the highest number
    {"hidden_act": "gelu", "layer_norm_eps": 1e-3},
]


@pytest.mark.parametrize("text", OPTIONS)
@torch.no_grad()
def test_their_folder_gives_their_logits(text: dict[str, Any], tmp_path: Path) -> None:
    theirs, tokenizer = their_folder(tmp_path, text)
    loaded = load_model(tmp_path)
    check_equal(clip_of(loaded), read(loaded, TEXTS), theirs, tokenizer)


@pytest.mark.parametrize("eos", ["number", "highest"])
@torch.no_grad()
def test_our_folder_gives_the_same_logits_there(eos: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    their_tokenizer(tmp_path / "made")
    tokenizer = Tokenizer.load(tmp_path / "made")
    torch.manual_seed(0)
    ours = small_model(tokenizer.size, tokenizer.eos_id if eos == "number" else eos, activation="gelu-tanh")
    processors = Processors(tokenizer, None, {"image": ours.config.image_processor()})
    save_model(tmp_path, ours, processors, task="image-text", about={}, card="")
    theirs = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    again = load_model(tmp_path)
    check_equal(ours, read(again, TEXTS), theirs, transformers.AutoTokenizer.from_pretrained(tmp_path))
    assert again.module.config == ours.config
    assert again.processors.fingerprints() == processors.fingerprints()
    assert all(torch.equal(mine, ours.state_dict()[name]) for name, mine in again.module.state_dict().items())
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8))
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    expected = processor(images=picture, text=TEXTS[:1], return_tensors="pt")
    image = again.processors.others["image"]
    assert isinstance(image, ImageProcessor)
    same(image.read([picture]).content, expected.pixel_values)
    assert torch.equal(read(again, TEXTS[:1]).token_ids, expected.input_ids)


def small_model(vocabulary: int = 40, eos: Any = 39, **text: Any) -> CLIPModel:
    towers = {"layers": 2, "width": 24, "heads": 3, "feedforward": 40}
    vision = {**towers, "image": 12, "patch": 4}
    settings = {"vision": vision, "text": {**towers, "length": 32, "eos": eos, **text}, "projection": 16}
    model = CLIPModel(CLIPConfig.model_validate(settings), Sizes(vocabulary)).eval()
    with torch.no_grad():  # as they are at first, all vectors would be nearly the same
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    clear_padding(model.text.embedding)
    return model


def test_a_folder_that_reads_texts_and_pictures_is_loaded(tmp_path: Path) -> None:
    their_folder(tmp_path)
    model = legato.load(tmp_path, device="cpu")
    assert model.task == "image-text"
    assert set(model.loaded.processors.fingerprints()) == {"tokenizer", "image"}
    assert model.module.max_length == 32
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(LegatoError, match=r"lacks preprocessor_config.json, the image processor"):
        legato.load(tmp_path)


def test_a_folder_of_their_processor_is_loaded(tmp_path: Path) -> None:
    """It keeps the image processor in processor_config.json, beside the tokenizer."""
    _, tokenizer = their_folder(tmp_path)
    before = load_model(tmp_path).processors.others["image"]
    image = transformers.CLIPImageProcessor(size={"shortest_edge": 12}, crop_size=12)
    (tmp_path / "preprocessor_config.json").unlink()
    transformers.CLIPProcessor(image_processor=image, tokenizer=tokenizer).save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    assert load_model(tmp_path).processors.others["image"] == before
    write(tmp_path / "processor_config.json", {"processor_class": "CLIPProcessor"})
    with pytest.raises(LegatoError, match=r"lacks preprocessor_config.json, and processor_config.json has no"):
        load_model(tmp_path)


@torch.no_grad()
def test_a_model_that_they_do_not_have_is_saved_in_our_own_form(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    their_tokenizer(tmp_path / "made")
    tokenizer = Tokenizer.load(tmp_path / "made")
    for eos in ("last", 2):
        ours = small_model(tokenizer.size, eos)
        processors = Processors(tokenizer, None, {"image": ours.config.image_processor()})
        save_model(tmp_path, ours, processors, task="image-text", about={}, card="")
        assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "legato-clip"
        again = load_model(tmp_path)
        assert again.module.config == ours.config
        inputs = read(again, TEXTS)
        same(clip_of(again).text_vectors(inputs), ours.text_vectors(inputs))


@pytest.mark.parametrize("eos", [39, "highest", "last"])
@torch.no_grad()
def test_padding_never_changes_a_text(eos: Any) -> None:
    torch.manual_seed(0)
    model = small_model(eos=eos).double()
    rows = [[3, 1, 4, 39], [5, 39], [9, 2, 6, 5, 3, 5, 39]]
    alone = torch.cat([model.text_vectors(Inputs.of([row])) for row in rows])
    for padding in (0, 39):  # which may be the end again
        torch.testing.assert_close(model.text_vectors(Inputs.of(rows, padding=padding)), alone)


def test_a_text_is_read_at_its_first_end() -> None:
    rows = torch.tensor([[7, 2, 5, 9], [1, 9, 9, 9], [7, 8, 3, 12]])
    lengths = torch.tensor([4, 4, 2])
    expected = {5: [2, 3, 1], 9: [3, 1, 1], "highest": [3, 1, 1], "last": [3, 3, 1]}
    for eos, places in expected.items():
        assert small_model(eos=eos).text.ends(Inputs(rows, lengths=lengths)).tolist() == places


def test_what_follows_a_texts_end_is_not_read_and_what_precedes_is() -> None:
    model, before = small_model().double(), torch.tensor([[3, 1, 4, 39, 8, 9]])
    behind, changed = before.clone(), before.clone()
    behind[0, 4:], changed[0, 1] = 11, 2
    torch.testing.assert_close(model.text_vectors(Inputs(behind)), model.text_vectors(Inputs(before)))
    assert not torch.allclose(model.text_vectors(Inputs(changed)), model.text_vectors(Inputs(before)))


@pytest.mark.parametrize("older", [False, True])
@torch.no_grad()
def test_the_vision_tower_alone_is_theirs_both_ways(older: bool, tmp_path: Path) -> None:
    config = transformers.CLIPVisionConfig(**VISION)
    theirs = transformers.CLIPVisionModel(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(tmp_path)
    ImageProcessor(12, (12, 12), kind="CLIPImageProcessor").save(tmp_path)
    file = tmp_path / "model.safetensors"
    if older:
        named = {f"vision_model.{name}": tensor for name, tensor in load_file(file).items()}
        save_file(named, file, metadata={"format": "pt"})
    loaded = load_model(tmp_path)
    ours, batch = loaded.module, Batch(Inputs(values=pictures()))
    assert isinstance(ours, CLIPVision)
    expected = theirs(pictures())
    same(ours(batch).hidden, expected.last_hidden_state)
    same(ours.pooled(ours(batch).hidden), expected.pooler_output)
    save_model(tmp_path, ours, loaded.processors, task="image-classification", about={}, card="")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["CLIPVisionModel"]
    again = transformers.CLIPVisionModel.from_pretrained(tmp_path).eval()
    same(again(pictures()).pooler_output, expected.pooler_output)


def test_a_head_reads_the_pooled_picture() -> None:
    body = small_model().vision
    head = ModelWithHead(body, HeadSpec(kind="classes", outputs=5, pool="model")).eval()
    batch = Batch(Inputs(values=pictures()))
    torch.testing.assert_close(head(batch).logits, head.head(body.pooled(body(batch).hidden)))


@torch.no_grad()
def test_low_rank_adapters_are_pefts(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    theirs, tokenizer = their_folder(tmp_path / "base")
    loaded = load_model(tmp_path / "base")
    ours, values = clip_of(loaded), Inputs(values=pictures())
    before, base = ours.image_vectors(values), Base.of(str(tmp_path / "base"), loaded)
    adapt(ours, AdaptConfig(name="lora", rank=2), base)
    for parameter in ours.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    (tmp_path / "adapter").mkdir()
    save_model(tmp_path / "adapter", ours, loaded.processors, task="image-text", about={}, card="")
    adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    expected = adapted(**tokenizer(TEXTS, padding=True, return_tensors="pt"), pixel_values=pictures())
    for model in (ours, clip_of(load_model(tmp_path / "adapter"))):
        images, texts = model.image_vectors(values), model.text_vectors(read(loaded, TEXTS))
        same(images, expected.image_embeds)
        same(texts, expected.text_embeds)
    assert not torch.allclose(images, before, atol=0.1)


@pytest.mark.parametrize("size", [(12, 20), (24, 24)])
@torch.no_grad()
def test_pictures_of_other_sizes_are_read_as_theirs(size: tuple[int, int], tmp_path: Path) -> None:
    theirs, _ = their_folder(tmp_path)
    ours = clip_of(load_model(tmp_path))
    expected = theirs.get_image_features(pictures(2, size), interpolate_pos_encoding=True).pooler_output
    same(ours.image_vectors(Inputs(values=pictures(2, size))), F.normalize(expected, dim=-1))


def test_the_symmetric_loss_and_its_gradients_are_the_formulas() -> None:
    torch.manual_seed(0)
    model = small_model()
    rows = Inputs.of([[3, 1, 4, 39], [5, 39], [9, 2, 6, 39]])
    batch = Batch(rows, source=Inputs(values=pictures()))
    output = model(batch)
    model.contrastive_losses(*output.hidden.unbind(1)).mean().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    images, texts = model.image_vectors(batch.source), model.text_vectors(rows)
    logits = model.logit_scale.exp() * images @ texts.t()
    torch.testing.assert_close(output.logits, logits)
    right = torch.diagonal
    plain = -(right(logits.log_softmax(1)) + right(logits.log_softmax(0))) / 2
    torch.testing.assert_close(model.contrastive_losses(images, texts), plain)
    plain.mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)
        assert parameter.grad.abs().sum() > 0, name  # type: ignore[union-attr]


@pytest.mark.slow
def test_it_learns_which_text_goes_with_which_picture() -> None:
    torch.manual_seed(0)
    model, images = small_model(), Inputs(values=pictures(8))
    texts = Inputs.of([[row, 8 + row, 39] for row in range(8)])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        model.contrastive_losses(model.image_vectors(images), model.text_vectors(texts)).mean().backward()
        optimizer.step()
    with torch.no_grad():
        vectors = model.image_vectors(images).numpy(), model.text_vectors(texts).numpy()
    assert recalls(*vectors, range(8))["recall"] == 1


def test_the_loss_is_theirs(tmp_path: Path) -> None:
    theirs, tokenizer = their_folder(tmp_path)
    loaded = load_model(tmp_path)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    expected = theirs(**inputs, pixel_values=pictures(), return_loss=True).loss
    ours = clip_of(loaded)
    found = ours.contrastive_losses(
        ours.image_vectors(Inputs(values=pictures())), ours.text_vectors(read(loaded, TEXTS))
    )
    same(found.mean(), expected)


def test_captions_of_one_picture_are_no_negatives_of_each_other() -> None:
    """Three pairs of which the first two share their picture: by hand."""
    model = small_model()
    vectors = F.normalize(torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(1)), dim=-1)
    images, texts = vectors[[0, 0, 2], 0], vectors[:, 1]
    keys = torch.tensor([[1, 10], [1, 11], [2, 12]])
    s = model.logits(images, texts).detach()
    first = (math.log(1 + (s[0, 2] - s[0, 0]).exp()) + math.log(1 + (s[2, 0] - s[0, 0]).exp())) / 2
    assert model.contrastive_losses(images, texts, keys)[0].item() == pytest.approx(first, rel=1e-5)


def test_the_scale_is_held_below_a_hundred_in_training_only() -> None:
    model = small_model()
    images, texts = (F.normalize(torch.randn(4, 16), dim=-1) for _ in range(2))
    with torch.no_grad():
        model.logit_scale.fill_(math.log(100.0))
    at_limit = model.contrastive_losses(images, texts)
    with torch.no_grad():
        model.logit_scale.fill_(math.log(300.0))
    losses = model.contrastive_losses(images, texts)
    torch.testing.assert_close(losses, at_limit)
    losses.sum().backward()
    assert model.logit_scale.grad == 0
    torch.testing.assert_close(model.logits(images, texts), 300 * images @ texts.t())


@torch.no_grad()
def test_classes_by_their_names_are_as_theirs(tmp_path: Path) -> None:
    theirs, tokenizer = their_folder(tmp_path)
    loaded = load_model(tmp_path)
    ours, labels = clip_of(loaded), ["cat", "dog", "mat on the rain"]
    prompts = [f"a photo of a {label}" for label in labels]
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    expected = theirs(**inputs, pixel_values=pictures(2)).logits_per_image.softmax(-1)
    classes = ours.class_vectors(read(loaded, class_prompts(labels)), len(labels))
    images = ours.image_vectors(Inputs(values=pictures(2)))
    same(ours.class_probabilities(images, classes), expected)
    assert expected.std() > 0.01  # so that it says something
    # Of several templates the mean of the vectors is taken, and made of length one again.
    templates = ["a photo of a {}", "the {} by the world"]
    several = ours.class_vectors(read(loaded, class_prompts(labels, templates)), len(labels))
    each = [ours.text_vectors(read(loaded, [t.replace("{}", label) for label in labels])) for t in templates]
    same(several, F.normalize(sum(each) / 2, dim=-1))  # type: ignore[arg-type]


@torch.no_grad()
def test_their_folder_embeds_and_chooses_as_theirs(tmp_path: Path) -> None:
    theirs, tokenizer = their_folder(tmp_path)
    held = legato.load(tmp_path, device="cpu")
    assert held.task == "image-text"
    noise = np.random.default_rng(0).integers(0, 255, (3, 20, 30, 3), dtype=np.uint8)
    shown = [Image.fromarray(each) for each in noise]
    seen = transformers.CLIPImageProcessor.from_pretrained(tmp_path)(shown, return_tensors="pt")
    expected = theirs(**tokenizer(TEXTS, padding=True, return_tensors="pt"), **seen)
    np.testing.assert_allclose(held.embed(TEXTS), expected.text_embeds, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(held.embed(image=shown), expected.image_embeds, rtol=1e-2, atol=1e-3)
    found = held.predictions(shown, labels=TEXTS)
    shares = [[each.answers[0].more["probabilities"][text] for text in TEXTS] for each in found]
    np.testing.assert_allclose(shares, expected.logits_per_image.softmax(-1), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("labels", "template", "message"),
    [
        (["cat"], "a photo", r"a template has \{\} once"),
        (["cat"], "{} and {}", r"a template has \{\} once"),
        ([], "a {}", "give at least one label"),
    ],
)
def test_a_template_has_a_place_for_the_label(labels: list[str], template: str, message: str) -> None:
    with pytest.raises(LegatoError, match=message):
        class_prompts(labels, [template])
    assert class_prompts(["{a}"], ["x {}"]) == ["x {a}"]


def test_older_folders_say_a_section_twice(tmp_path: Path) -> None:
    their_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change(tmp_path / "config.json", text_config_dict=config["text_config"], text_config={"hidden_size": 512})
    assert load_model(tmp_path).module.config.text.width == 24
    change(tmp_path / "config.json", text_config_dict=None, text_config=config["text_config"])
    assert load_model(tmp_path).module.config.text.width == 24


def test_what_is_left_out_of_config_json_is_the_base_model(tmp_path: Path) -> None:
    transformers.CLIPConfig().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert CLIP.settings({}, {}, "f") == CLIP.settings(written, {}, "f")
    assert CLIP.sizes({}) == CLIP.sizes(written) == Sizes(49408)


@pytest.mark.parametrize(
    ("section", "entries", "message"),
    [
        ("vision_config", {"num_channels": 1}, r"vision_config\.num_channels is 1; Legato has only 3"),
        ("vision_config", {"patch_size": 5}, "patch=5 does not divide image=12"),
        ("text_config", {"num_attention_heads": 5}, "heads=5 does not divide width=24"),
        ("text_config", {"hidden_act": "mish"}, r"text_config\.hidden_act=mish is unknown"),
        ("text_config", {"vocab_size": 2}, "the tokenizer has|should have shape"),
        ("text_config", {"hidden_size": "24"}, r"'text_config\.hidden_size' should be a valid integer"),
    ],
)
def test_a_wrong_entry_of_a_section_is_named(
    section: str, entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    their_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change(tmp_path / "config.json", **{section: {**config[section], **entries}})
    with pytest.raises(LegatoError, match=message):
        load_model(tmp_path)


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(LegatoError, match="a text of 33 tokens is too long: this model goes up to 32"):
        small_model().text_vectors(Inputs(torch.zeros(1, 33, dtype=torch.long)))


def test_a_tokenizer_made_here_ends_texts_where_vectors_are_read(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="bpe", size=300), TEXTS)
    ended = with_eos(tokenizer)
    model = small_model(tokenizer.size, tokenizer.eos_id)
    rows = model.config.text_reader(ended).texts(TEXTS)
    assert [row.ids for row in rows] == [[*tokenizer.encode(text).tolist(), tokenizer.eos_id] for text in TEXTS]
    assert with_eos(ended) is ended
    processors = Processors(ended, None, {"image": model.config.image_processor()})
    save_model(tmp_path, model, processors, task="image-text", about={}, card="")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXTS).input_ids == [row.ids for row in rows]
    again = load_model(tmp_path)
    assert again.module.config.text_reader(again.tokenizer).texts(TEXTS) == rows
