"""How one talks with a model about pictures: dialogues as tokens, and what it answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.examples import Example
from legato.data.batching.picture_batches import Pixels
from legato.data.formats.picture_dialogues import PictureDialogues, last_answer
from legato.data.image.picture_files import as_picture
from legato.data.text.tokenizers import AnyTokenizer, StreamDecoder, Tokenizer
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, DataError, LegatoError
from legato.folders.chat_template import ChatTemplate, Messages
from legato.folders.loaded import Loaded
from legato.models.llava import LlavaModel, PatchVectors
from legato.tasks.base import Say
from legato.tasks.chat.task import rows_of, template_of
from legato.tasks.picture_data import image_processor

ROWS = {"cuda": 256}  # dialogues that are answered side by side, at most
FEW_ROWS = 16
KEPT = 8 << 30  # bytes of keys and values that may be kept of them
IMAGE = "<image>"  # the image token of a tokenizer that is made here
IMAGE_NAMES = (IMAGE, "<|image|>", "<|image_pad|>", "[IMG]", "<image_soft_token>")  # and of others'


class PictureTalk:
    """How dialogues about pictures become tokens: the tokenizer, the template and the image token."""

    def __init__(self, tokenizer: Any, chat: ChatTemplate, token: int, patches: int) -> None:
        if not isinstance(tokenizer, Tokenizer) or token >= tokenizer.size or token not in tokenizer.special_ids:
            raise ConfigError(
                f"the image token, model.image_token={token}, is no special token of the tokenizer; name one that "
                "is, and that no dialogue needs"
            )
        if token == tokenizer.eos_id:
            raise ConfigError(f"model.image_token={token} is the EOS token; name another special token")
        self.tokenizer, self.token, self.patches = tokenizer, token, patches
        self.name = tokenizer.token_name(token)
        self.chat = replace(chat, image=self.name)

    @classmethod
    def of(cls, loaded: Loaded) -> PictureTalk:
        """How a trained model is talked to."""
        model, processor = llava_of(loaded), image_processor(loaded)
        chat = template_of(loaded.tokenizer, loaded)
        return cls(loaded.tokenizer, chat, model.image_token, model.patches_of(*(processor.shape or (0, 0))))

    def with_picture(self, messages: Messages, where: str) -> list[dict[str, str]]:
        """The messages with the image token before what the user says first."""
        refuse_spelt(self.name, messages, where)
        first = next((number for number, message in enumerate(messages) if message["role"] == "user"), None)
        if first is None:
            raise DataError(f"{where}: no user speaks, and the picture belongs to what a user says first")
        said = {**messages[first], "content": f"{self.name}\n{messages[first]['content']}"}
        return [dict(message) for message in (*messages[:first], said, *messages[first + 1 :])]

    def expanded(self, ids: Sequence[int]) -> list[int]:
        """The ids with an image token for each patch."""
        return [token for found in ids for token in ([found] * self.patches if found == self.token else [found])]

    def rows(self, dialogues: PictureDialogues, max_length: int, say: Say) -> list[Example]:
        """Dialogues as rows to learn from, each with the number of its picture in their album."""
        more = self.patches - 1
        if max_length <= more + 1:
            raise ConfigError(
                f"a picture has {self.patches} image tokens, and a dialogue at most {max_length} tokens; raise the "
                "text model's length or data.window, or read smaller pictures"
            )
        seen = [self.with_picture(row, dialogues.where(number)) for number, row in enumerate(dialogues.rows)]
        rows = rows_of(replace(dialogues, rows=seen), self.tokenizer, self.chat, max_length - more, say)
        _, numbers = dialogues.album()
        found = []
        for row in rows:
            if self.token not in row.ids:  # what a user says first lies beyond what is read
                continue
            at = row.ids.index(self.token)
            positions = [place + more if place >= at else place for place in row.positions or ()]
            picture = numbers[row.picture or 0]
            found.append(replace(row, ids=self.expanded(row.ids), positions=positions, picture=picture))
        if not found:
            raise self._no_place(dialogues.source)
        if len(found) < len(rows):
            say(f"{dialogues.source}: {len(rows) - len(found):,} are left out, their pictures beyond the window")
        return found

    def prompt(self, messages: Messages, where: str = "the dialogue") -> list[int]:
        """The tokens before the model's answer."""
        text = self.chat.render(self.with_picture(messages, where))
        ids = self.tokenizer.encode_template(text)
        if self.token not in ids:
            raise self._no_place(where)
        return self.expanded(ids)

    def _no_place(self, where: str) -> DataError:
        return DataError(
            f"{where}: {self.chat.where} leaves out the image token {self.name}, which stands before what the user "
            "says first; a template is needed that writes what is said as it is"
        )

    def asked(self, dialogues: PictureDialogues, row: int) -> list[int]:
        """The tokens before the last answer of a dialogue; none where no user has spoken before it."""
        before = dialogues.rows[row][: last_answer(dialogues.rows[row])]
        spoken = any(message["role"] == "user" for message in before)
        return self.prompt(before, dialogues.where(row)) if spoken else []

    def text(self, prompt: Sequence[int], answer: Sequence[int]) -> str:
        """An answer as people read it."""
        decoder = StreamDecoder(self.tokenizer, after=prompt)
        return ("".join(decoder.push(token) for token in answer) + decoder.finish()).strip()


def choose_image_token(tokenizer: AnyTokenizer, chat: ChatTemplate, ends: Collection[int]) -> int:
    """The image token of a tokenizer that was not made here: one named so, or the last special token that is free.

    Free is what the template does not write, and what ends nothing.
    """
    assert isinstance(tokenizer, Tokenizer)
    names = {tokenizer.token_name(token): token for token in sorted(tokenizer.special_ids)}
    for name in IMAGE_NAMES:
        if name in names:
            return names[name]
    own = {tokenizer.eos_id, tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, *ends}
    written = [chat.source, *chat.tokens.values()]
    free = [token for name, token in names.items() if token not in own and not any(name in text for text in written)]
    if not free:
        raise ConfigError(
            "the text model's tokenizer has no special token left to stand for a picture; name the number of one "
            "that no dialogue needs: model.image_token=N"
        )
    return free[-1]


def refuse_spelt(name: str, messages: Messages, where: str) -> None:
    """Refuse a dialogue whose text spells the image token."""
    if any(name in message["content"] for message in messages):
        raise DataError(f"{where}: the text holds {name}, which stands for the picture; remove it")


def answers(
    model: LlavaModel,
    prompts: Sequence[Sequence[int]],
    pictures: Tensor,
    options: SearchOptions,
    ends: Collection[int],
) -> list[Any]:
    """What the model answers to each prompt, of which each has one of the pictures (N, 3, H, W)."""
    limits = None
    if model.max_length is not None:
        limits = [min(options.max_tokens, model.max_length - len(ids) + 1) for ids in prompts]
    memory = seen(model, pictures)
    return search(model, prompts, options, eos=None, stop_tokens=ends, limits=limits, memory=memory)


@torch.no_grad()
def write_answers(
    model: LlavaModel,
    talk: PictureTalk,
    prompts: Sequence[Sequence[int]],
    pictures: Sequence[int],
    pixels: Pixels,
    options: SearchOptions,
    ends: Collection[int],
) -> list[str]:
    """What the model answers to each prompt, about the picture of that number; prompts of like length side by side.

    It has nothing to say to an empty prompt, or to one longer than what it reads.
    """
    found, most = [""] * len(prompts), model.max_length
    fitting = [row for row, ids in enumerate(prompts) if ids and (most is None or len(ids) <= most)]
    order = sorted(fitting, key=lambda row: len(prompts[row]))
    longest = max((len(prompts[row]) for row in fitting), default=0) + options.max_tokens
    size = min(ROWS.get(model.device.type, FEW_ROWS), rows_within(model, longest * (options.beams or 1)))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        taken = pixels.take(np.array([pictures[row] for row in rows])).to(model.device, non_blocking=True)
        values = pixels.decoder.processor.scaled(taken)
        best = answers(model, [prompts[row] for row in rows], values, options, ends)
        for row, hypotheses in zip(rows, best, strict=True):
            found[row] = talk.text(prompts[row], hypotheses[0].tokens)
    return found


@torch.no_grad()
def seen(model: LlavaModel, pictures: Tensor) -> PatchVectors | None:
    """What a search needs of the pictures (N, 3, H, W) of as many prompts, one each."""
    rows = torch.arange(len(pictures), device=pictures.device)
    return model.encode(Batch(Inputs(), images=Inputs(values=pictures), image_rows=rows))


def rows_within(model: LlavaModel, tokens: int) -> int:
    """How many rows of so many tokens may be written side by side; one at least."""
    config = model.text.config
    size = max(weight.element_size() for weight in model.parameters())
    return max(1, KEPT // max(1, tokens * 2 * config.layers * config.width * size))


def look_at(loaded: Loaded, images: Sequence[Any], device: torch.device) -> PatchVectors | None:
    """The same of pictures as somebody gives them: files, arrays, what Pillow has read."""
    model, processor = llava_of(loaded), image_processor(loaded)
    read = processor.read([as_picture(image).load() for image in images])
    return seen(model, read.content.to(device))


def llava_of(loaded: Loaded) -> LlavaModel:
    """The model of a folder, if it can be asked about pictures."""
    if not isinstance(loaded.module, LlavaModel):
        raise LegatoError(f"{loaded.folder} holds a model that reads no pictures among words; it is no llava")
    return loaded.module
