"""Names to things: models, tasks and published formats, ours and those that other packages bring.

Ours are listed as `module:attribute` strings, so that listing the names imports nothing. Another
package adds its own through an entry point,

    [project.entry-points."legato.models"]
    my-model = "my_package.models:MyModel"

and a script adds one with `MODELS.add("my-model", MyModel)`.

Packages that only some verbs need come with an extra of the installation, and are imported by `require_extra`.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from legato.errors import ConfigError, LegatoError, brief, suggest


class Registry:
    """A table of named classes, loaded when first asked for."""

    def __init__(self, kind: str, group: str, builtin: dict[str, str]) -> None:
        self.kind = kind
        self.group = group
        self.builtin = builtin  # our own names, and where the classes are
        self._added: dict[str, Any] = {}

    def add(self, name: str, thing: Any) -> None:
        """Register `thing` under `name` for this process."""
        self._added[name] = thing

    def names(self) -> list[str]:
        """Every known name, ours first; imports none of them."""
        return list(dict.fromkeys([*self.builtin, *self._added, *(point.name for point in self._outside())]))

    def __contains__(self, name: str) -> bool:
        return name in self.builtin or name in self._added or name in self._outside().names

    def get(self, name: str) -> Any:
        """The class behind `name`, or a ConfigError that suggests the nearest one."""
        if name in self._added:
            return self._added[name]
        if name in self.builtin:
            module, attribute = self.builtin[name].split(":")
            return getattr(importlib.import_module(module), attribute)  # by its name in the table
        for point in self._outside().select(name=name):
            try:
                return point.load()
            except Exception as problem:
                raise ConfigError(
                    f"{self.kind} '{name}' comes from '{point.value}', which does not load: {problem}"
                ) from problem
        raise ConfigError(f"there is no {self.kind} '{brief(name)}'; {suggest(name, self.names())}")

    def _outside(self) -> EntryPoints:
        """What other packages bring, those that were there when it was first asked for."""
        return _every_entry_point(tuple(sys.path)).select(group=self.group)


@cache  # it looks at every package that is installed, which takes longer than all else here
def _every_entry_point(path: tuple[str, ...]) -> Any:
    return entry_points()


def require_extra(extra: str, module: str) -> Any:
    """A module of a package that an extra brings; where it is missing, a line that says how to install it.

    >>> require_extra("serve", "fastapi")  # doctest: +SKIP
    <module 'fastapi' …>
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        missing = isinstance(problem, ModuleNotFoundError) and (problem.name or "").partition(".")[0] == package
        reason = "is not installed" if missing else f"cannot be loaded ({brief(problem, 200)})"
        raise LegatoError(f'{package} {reason}; it comes with: pip install "legato-nn[{extra}]"') from None


MODELS = Registry(
    "model",
    "legato.models",
    {
        "window": "legato.models.window:WindowModel",
        "elman": "legato.models.recurrent:RecurrentModel",
        "gru": "legato.models.recurrent:RecurrentModel",
        "lstm": "legato.models.recurrent:RecurrentModel",
        "elmo": "legato.models.elmo:ElmoModel",
        "seq2seq": "legato.models.seq2seq:Seq2SeqModel",
        "transformer": "legato.models.transformer:TransformerModel",
        "gpt2": "legato.models.gpt2:GPT2Model",
        "bert": "legato.models.bert:BertModel",
        "roberta": "legato.models.roberta:RobertaModel",
        "distilbert": "legato.models.distilbert:DistilBertModel",
        "llama": "legato.models.llama:LlamaModel",
        "word2vec": "legato.models.word2vec:Word2VecModel",
        "vit": "legato.models.vit:ViTModel",
        "vqa": "legato.models.vqa:VQAModel",
        "detr": "legato.models.detr:DETRModel",
        "resnet": "legato.models.resnet:ResNetModel",
        "efficientnet-lite": "legato.models.efficientnet_lite:EfficientNetLiteModel",
        "frames": "legato.models.frames:FramesModel",
        "clip": "legato.models.clip:CLIPModel",
        "clip-vision": "legato.models.clip:CLIPVision",
        "llava": "legato.models.llava:LlavaModel",
        "unit": "legato.models.unit:UnitModel",
        "conformer": "legato.models.conformer:ConformerModel",
        "deepspeech": "legato.models.deepspeech:DeepSpeechModel",
        "whisper": "legato.models.whisper:WhisperModel",
    },
)

TASKS = Registry(
    "task",
    "legato.tasks",
    {
        "lm": "legato.tasks.lm.task:LanguageModelling",
        "mlm": "legato.tasks.mlm.task:MaskedLanguageModelling",
        "translation": "legato.tasks.translation.task:Translation",
        "parsing": "legato.tasks.parsing.task:Parsing",
        "tagging": "legato.tasks.tagging.task:Tagging",
        "classification": "legato.tasks.classification.task:Classification",
        "qa": "legato.tasks.qa.task:QuestionAnswering",
        "chat": "legato.tasks.chat.task:Chat",
        "word2vec": "legato.tasks.word2vec.task:Word2Vec",
        "embedding": "legato.tasks.embedding.task:Embedding",
        "captioning": "legato.tasks.captioning.task:Captioning",
        "image-text": "legato.tasks.image_text.task:ImageText",
        "vqa": "legato.tasks.vqa.task:VQA",
        "visual-chat": "legato.tasks.visual_chat.task:VisualChat",
        "detection": "legato.tasks.detection.task:Detection",
        "unit": "legato.tasks.unit.task:Unit",
        "image-classification": "legato.tasks.image_classification.task:ImageClassification",
        "speech": "legato.tasks.speech.task:Speech",
        "audio-classification": "legato.tasks.audio_classification.task:AudioClassification",
    },
)

# What reads inputs that are not text; see data/processors.py.
PROCESSORS = Registry(
    "processor",
    "legato.processors",
    {
        "image": "legato.data.image.image_processor:ImageProcessor",
        "audio": "legato.data.audio.feature_extractor:FeatureExtractor",
    },
)

# Hugging Face's `model_type`s that we read and write, each with the map of its names; and what others publish as
# weights alone, which we read.
PUBLISHED = Registry(
    "published model",
    "legato.published",
    {
        "marian": "legato.models.published.marian:Marian",
        "gpt2": "legato.models.published.gpt2:GPT2",
        "bert": "legato.models.published.bert:Bert",
        "roberta": "legato.models.published.bert:Roberta",
        "xlm-roberta": "legato.models.published.bert:XLMRoberta",
        "camembert": "legato.models.published.bert:Camembert",
        "distilbert": "legato.models.published.bert:DistilBert",
        "llama": "legato.models.published.llama:Llama",
        "mistral": "legato.models.published.llama:Mistral",
        "qwen2": "legato.models.published.llama:Qwen2",
        "qwen3": "legato.models.published.llama:Qwen3",
        "vit": "legato.models.published.vit:ViT",
        "resnet": "legato.models.published.resnet:ResNet",
        "efficientnet-lite": "legato.models.published.efficientnet_lite:EfficientNetLite",
        "vision-encoder-decoder": "legato.models.published.vision_encoder_decoder:VisionEncoderDecoder",
        "clip": "legato.models.published.clip:CLIP",
        "clip_vision_model": "legato.models.published.clip:CLIPVisionTower",
        "llava": "legato.models.published.llava:Llava",
        "parakeet_ctc": "legato.models.published.parakeet:ParakeetCTC",
        "parakeet_encoder": "legato.models.published.parakeet:ParakeetEncoder",
        "whisper": "legato.models.published.whisper:Whisper",
    },
)
