"""Hiding words that a model shall guess: the masked language model's rows, masks and batches.

    [CLS] he ate the [MASK] with a fork [SEP]        → cake

Of the tokens of a row, a share (15 %) is chosen; of those, 80 % become [MASK], 10 % another token and 10 % stay as
they are, so that the model must make something of every token, and not of [MASK] alone (Devlin et al. 2019). With
whole words, the pieces of a word are chosen together. Special tokens and padding are never chosen.

Notable: what is hidden at step N depends on the seed and N alone, so it is new in each epoch and the same after a
restart. Every row has as many `positions` as can be chosen of a full one; those too many point at the row's first
token, [CLS], and their target is IGNORE. So batches have one shape, and the readout sees the positions rather than
all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.batches import Array, WindowShape, mix_seed
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer
from legato.data.text.vocabularies import with_mask
from legato.errors import DataError

SPACE = " \t\n\r\v\f\u00a0\u3000\u0120\u010a\u2581"  # as texts, byte-level and Unigram vocabularies write it


def masked_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, with the special tokens that hiding words needs added where it lacks them."""
    if None not in (tokenizer.mask_id, tokenizer.cls_id, tokenizer.sep_id):
        return tokenizer
    library = with_mask(tokenizer.library.copy(), tokenizer.name)
    return Tokenizer(library, tokenizer.token_name(tokenizer.eos_id))


@dataclass(frozen=True)
class Frame:
    """The special tokens around a text that is read both ways, and what pads it."""

    first: int
    last: int
    padding: int

    @classmethod
    def of(cls, tokenizer: AnyTokenizer) -> Frame:
        return cls(*tokenizer.cls_and_sep, padding=tokenizer.pad_id or 0)

    def rows(self, texts: Sequence[Array]) -> Inputs:
        """Each text between its special tokens, padded to the longest."""
        lengths = np.array([len(text) + 2 for text in texts], dtype=np.int64)
        ids = np.full((len(texts), int(lengths.max())), self.padding, dtype=np.int64)
        ids[:, 0] = self.first
        for row, text in enumerate(texts):
            ids[row, 1 : len(text) + 1] = text
        ids[np.arange(len(texts)), lengths - 1] = self.last
        full = bool((lengths == ids.shape[1]).all())
        return Inputs(torch.from_numpy(ids), lengths=None if full else torch.from_numpy(lengths))


class WordStarts:
    """Where words begin in a row of tokens: at the space before them, or at a special token; ## goes on."""

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        size = tokenizer.size
        if tokenizer.pieces is not None:
            texts = [piece.decode("utf-8", "replace") for piece in tokenizer.pieces]
        else:
            texts = [tokenizer.token_name(index) for index in range(size)]
            if any(text.startswith("##") for text in texts):  # a WordPiece vocabulary made elsewhere
                texts = [text[2:] if text.startswith("##") else " " + text for text in texts]
        self._opens = np.array(
            [text[:1] in SPACE for text in texts]
        )  # "" opens one: a special token, or nothing at all
        self._closes = np.array([text[-1:] in SPACE and bool(text.strip(SPACE)) for text in texts])
        special = list(tokenizer.special_ids)
        self._opens[special] = self._closes[special] = True

    def starts(self, ids: Array) -> Array:
        """True where a word begins, (B, T)."""
        starts = self._opens[ids]
        starts[:, 1:] |= self._closes[ids[:, :-1]]
        starts[:, 0] = True
        return starts


@dataclass
class Masker:
    """Chooses tokens of rows and hides them."""

    mask: int
    special_ids: Array  # never chosen
    ordinary: Array  # what may stand in a hidden token's place
    share: float = 0.15
    words: WordStarts | None = None  # where words are hidden as a whole

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, share: float = 0.15, whole_words: bool = False) -> Masker:
        if tokenizer.mask_id is None:
            raise DataError("the tokenizer has no mask ([MASK] or <mask>), so no word can be hidden")
        special = np.zeros(tokenizer.size, dtype=bool)
        special[list(tokenizer.special_ids)] = True
        plain = ~special
        if tokenizer.unk_id is not None:
            plain[tokenizer.unk_id] = False
        ordinary = np.flatnonzero(plain)
        if len(ordinary) == 0:
            raise DataError("the vocabulary holds special tokens alone; give a longer text")
        words = WordStarts(tokenizer) if whole_words else None
        return cls(tokenizer.mask_id, special, ordinary, share, words)

    def most(self, width: int) -> int:
        """How many tokens are chosen of a full row of `width` tokens with a special token at each end."""
        return max(1, round(self.share * max(width - 2, 1)))

    def hide(
        self, rows: Inputs, draw: np.random.Generator, *, all_masked: bool = False, fixed_shape: bool = False
    ) -> Batch:
        """Choose tokens of rows and hide them; with `all_masked` every chosen one becomes the mask."""
        ids, lengths = rows.token_ids.numpy(), rows.lengths
        allowed = ~self.special_ids[ids]
        if lengths is not None:
            allowed &= np.arange(ids.shape[1]) < lengths.numpy()[:, None]
        chosen = self._choose(ids, allowed, draw)
        hidden = ids[chosen]
        fate = np.zeros(len(hidden)) if all_masked else draw.random(len(hidden))
        other = self.ordinary[draw.integers(len(self.ordinary), size=len(hidden))]
        inputs = ids.copy()
        inputs[chosen] = np.where(fate < 0.8, self.mask, np.where(fate < 0.9, other, hidden))
        positions = positions_of(chosen, self.most(ids.shape[1]))  # (B, N)
        targets = np.take_along_axis(np.where(chosen, ids, IGNORE), positions, 1)  # IGNORE where nothing was hidden
        return Batch(
            replace(rows, ids=torch.from_numpy(inputs)),
            torch.from_numpy(targets),
            positions=torch.from_numpy(positions),
            tokens=int((targets != IGNORE).sum()),
            read=ids.size if lengths is None else int(lengths.sum()),
            fixed_shape=fixed_shape,
        )

    def _choose(self, ids: Array, allowed: Array, draw: np.random.Generator) -> Array:
        """Of each row's `allowed` tokens the share, at least one, at most what a full row has: (B, T)."""
        count = np.clip(np.rint(self.share * allowed.sum(1)), 1, self.most(ids.shape[1])).astype(int)
        count = np.minimum(count, allowed.sum(1))  # (B,)
        if self.words is None:
            lots = np.where(allowed, draw.random(ids.shape), np.inf)
            lowest = np.take_along_axis(np.sort(lots, axis=1), np.maximum(count - 1, 0)[:, None], 1)  # (B, 1)
            return (lots <= lowest) & allowed
        return _whole_words(self.words.starts(ids), allowed, count, draw)


def positions_of(chosen: Array, most: int) -> Array:
    """The columns of a row's chosen tokens, at most `most` of them; 0, a special token's, for those that lack."""
    positions = np.zeros((len(chosen), most), dtype=np.int64)
    rows, columns = np.nonzero(chosen)
    turn = np.arange(len(rows)) - np.searchsorted(rows, rows)  # how many of the row come before
    positions[rows[turn < most], turn[turn < most]] = columns[turn < most]
    return positions


def _whole_words(starts: Array, allowed: Array, count: Array, draw: np.random.Generator) -> Array:
    """Words in random order, those left out that do not fit into `count` (B,) tokens any more; (B, T).

    A word of more tokens than that could never be chosen: its tokens are taken one by one.
    """
    word, sizes = _numbered(starts | ~allowed, allowed)
    long = np.take_along_axis(sizes, word, 1) > count[:, None]
    if long.any():
        word, sizes = _numbered(starts | ~allowed | long, allowed)
    order = np.argsort(np.where(sizes > 0, draw.random(sizes.shape), np.inf), axis=1)
    sizes = np.take_along_axis(sizes, order, 1)  # in random order, what is no word last
    taken = np.zeros(len(count), dtype=np.int64)
    accepted = np.zeros(sizes.shape, dtype=bool)
    for turn in range(sizes.shape[1]):
        fits = (sizes[:, turn] > 0) & (taken + sizes[:, turn] <= count)
        taken += sizes[:, turn] * fits
        accepted[:, turn] = fits
        if (taken == count).all():
            break
    chosen = np.zeros_like(accepted)
    np.put_along_axis(chosen, order, accepted, axis=1)
    return np.take_along_axis(chosen, word, 1) & allowed


def _numbered(starts: Array, allowed: Array) -> tuple[Array, Array]:
    """The number of each token's word in its row, and how many tokens that count each word has; both (B, T)."""
    rows, width = starts.shape
    word = np.cumsum(starts, axis=1) - 1
    flat = (word + np.arange(rows)[:, None] * width)[allowed]
    return word, np.bincount(flat, minlength=rows * width).reshape(rows, width)


class MaskedWindows:
    """A text in windows between special tokens, shuffled and hidden anew each epoch."""

    def __init__(self, ids: Array, masker: Masker, frame: Frame, shape: WindowShape) -> None:
        """A window's two special tokens count; the text is a ring that each epoch opens elsewhere."""
        self.ids, self.masker, self.frame, self.shape = ids, masker, frame, shape
        self._room = shape.window - 2
        advice = "give a longer text, or lower train.batch_tokens or data.window"
        self.steps_per_epoch = shape.steps(len(ids), advice, special=2)
        self.tokens_per_step = shape.tokens
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            draw = np.random.default_rng(mix_seed(self.shape.seed, "masked windows", epoch))
            opened = int(draw.integers(len(self.ids)))
            self._starts = draw.permutation(len(self.ids) // self._room) * self._room + opened
            self._planned = epoch
        starts = self._starts[index * self.shape.rows : (index + 1) * self.shape.rows]
        cut = self.ids[(starts[:, None] + np.arange(self._room)) % len(self.ids)]  # (B, window - 2)
        draw = np.random.default_rng(mix_seed(self.shape.seed, "mask", step))
        return self.masker.hide(self.frame.rows(list(cut)), draw, fixed_shape=True)


def fixed_batches(ids: Array, masker: Masker, frame: Frame, *, rows: int, window: int, seed: int = 0) -> list[Batch]:
    """A whole text in windows, in its order, each chosen token masked: the same whenever it is asked for."""
    room = window - 2
    cut = [ids[start : start + room] for start in range(0, len(ids), room)]
    batches = []
    for start in range(0, len(cut), rows):
        draw = np.random.default_rng(mix_seed(seed, "fixed mask", start // rows))
        batches.append(masker.hide(frame.rows(cut[start : start + rows]), draw, all_masked=True))
    return batches
