"""A word's vector from the characters that spell it: convolutions, the largest of each, highways.

    c_1 … c_L       embedded bytes of a word between BEGIN and END, zeros behind (data/text/word_bytes.py)
    f_k = max_{1 ≤ p ≤ L + 1} W_k · c_{p : p + w}      for filters of several widths w
    y   = relu(f + b)
    y   = g ∘ relu(W_h y + b_h) + (1 - g) ∘ y,  g = σ(W_g y + b_g)     highway layers (Srivastava et al. 2015)
    x   = W_x y + b_x                                  a vector of the wanted width

Kim et al. 2016, "Character-Aware Neural Language Models", with ELMo's relu (Peters et al. 2018).

Notable here:

- one window behind a word is all padding and always counts, whose W_k · 0 is 0; so how far a batch is padded
  changes nothing, and no mask is needed on the large tensor;
- a row of zeros is no word, and its vector is zero;
- on a CPU each different word of a batch is made once, with others about as long: a few long words would make all
  wide. On a GPU all are made as they are: telling them apart would make it wait.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.data.text.word_bytes import SYMBOLS, word_bytes
from legato.nn.linear import Linear, product_dtype

GROUPS = 8  # of words by their length, on a CPU


class Highway(nn.Module):
    """y = g ∘ relu(W_h x + b_h) + (1 - g) ∘ x,  g = σ(W_g x + b_g); it starts out passing most of x on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = Linear(width, width)
        self.gate = Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.change(x)) + (1 - gate) * x


class CharacterWords(nn.Module):
    """Spelt words (…, C) to vectors (…, width).

    `filters[i]` is how many filters are i + 1 bytes wide. The vocabulary's spelling (`spell`) lets token ids stand
    for words where a batch has no bytes; until it is told, a token is spelt by its number. Files do not hold it: it
    follows from the tokenizer.
    """

    spelling: Tensor | None  # (V, C)

    def __init__(self, width: int, filters: list[int], *, highways: int = 0, embedding: int = 16) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(SYMBOLS, embedding, padding_idx=0)
        self.filters = nn.ParameterList(
            nn.Parameter(torch.empty(count, reach * embedding)) for reach, count in enumerate(filters, 1) if count
        )
        made = sum(filters)
        self.bias = nn.Parameter(torch.zeros(made))
        self.highways = nn.ModuleList(Highway(made) for _ in range(highways))
        self.projection = Linear(made, width) if made != width else None
        for weight in self.filters:  # the largest of many is large enough, and much larger than zero
            nn.init.normal_(weight, std=0.3 / math.sqrt(weight.shape[1]))
        if self.projection is not None:
            nn.init.xavier_uniform_(self.projection.weight)
            nn.init.zeros_(self.projection.bias)
        self.register_buffer("spelling", None, persistent=False)

    def spell(self, table: Tensor) -> None:
        """Take the vocabulary's spelling, (V, C)."""
        self.spelling = table.to(self.bias.device)

    def forward(self, characters: Tensor | None, ids: Tensor) -> Tensor:
        """The words of `ids` (…), spelt in `characters` (…, C) or, without those, in the vocabulary."""
        if characters is not None:
            flat = characters.reshape(-1, characters.shape[-1])
            if flat.is_cpu and len(flat):
                words, place = flat.unique(dim=0, return_inverse=True)
                made = self.encode(words)[place]
            else:
                made = self.encode(flat)
        elif ids.is_cpu:
            tokens, place = ids.unique(return_inverse=True)
            made = self.encode(self._spelling(tokens)[tokens])[place]
        else:
            made = self.encode(self._spelling(ids)[ids.reshape(-1)])
        return made.view(*ids.shape, self.width)

    def encode(self, words: Tensor) -> Tensor:
        """Words (N, C), each made on its own: (N, width)."""
        found = self._by_length(words) if words.is_cpu and len(words) >= 2 * GROUPS else self._largest(words)
        y = F.relu(found + self.bias)
        for highway in self.highways:
            y = highway(y)
        if self.projection is not None:
            y = self.projection(y)
        return y * (words[:, :1] != 0)

    def _largest(self, words: Tensor) -> Tensor:
        """The largest product of each filter: (N, filters)."""
        windows = self._windows(words)
        shape = (words.shape[0], words.shape[1] + 1, -1)
        # A narrow filter reads what a window begins with, so that the widest windows serve all.
        found = [
            (windows[:, : weight.shape[1]] @ weight.t().to(windows.dtype)).view(shape).max(1).values
            for weight in self.filters
        ]
        return torch.cat(found, dim=-1)

    def _by_length(self, words: Tensor) -> Tensor:
        """The same, words of like length together, no wider than the longest of them."""
        lengths = (words != 0).sum(1)
        order = lengths.argsort(stable=True)
        found = [self._largest(words[group, : max(int(lengths[group[-1]]), 1)]) for group in order.chunk(GROUPS)]
        return torch.cat(found)[order.argsort()]

    def _windows(self, words: Tensor) -> Tensor:
        """All windows of the widest filters, their bytes embedded: (N · (C + 1), reach · E)."""
        weight = self.embedding.weight
        weight = weight.to(product_dtype(weight))  # once, not for each width again
        count, length = words.shape
        reach = max(part.shape[1] for part in self.filters) // weight.shape[1]
        padded = F.pad(words.long(), (0, reach))
        x = F.embedding(padded, weight, padding_idx=0)  # (N, C + reach, E)
        shifted = [x[:, start : start + length + 1] for start in range(reach)]
        return torch.cat(shifted, dim=-1).view(count * (length + 1), -1)

    def _spelling(self, ids: Tensor) -> Tensor:
        if self.spelling is None:
            count = int(ids.max()) + 1 if ids.numel() else 1
            return torch.from_numpy(word_bytes([str(number) for number in range(count)])).to(ids.device)
        return self.spelling


def tell_spelling(module: nn.Module, spelling: Tensor) -> None:
    """Let every part of a model that reads characters know how the vocabulary's words are spelt, (V, C)."""
    for part in module.modules():
        if isinstance(part, CharacterWords):
            part.spell(spelling)
