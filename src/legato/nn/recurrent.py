"""Recurrent cells, written gate by gate, and the same cells through PyTorch's fused kernels.

Notable here:

- each cell is one short class whose `advance` reads like its equations; `W` multiplies the input,
  `U` the previous hidden state;
- `Layer` runs a cell over time: fused (cuDNN, oneDNN) as a rule, written out when somebody looks
  inside (`nn/capture.py`) or when `fused` is off; tests hold the two equal;
- rows of different lengths need no packing, so nobody waits for the device to say how long they are;
- parameters are laid out as in `torch.nn.LSTM`, `GRU` and `RNN`, so theirs can be copied over;
- everything inside is time-major, (T, B, D), which is how the kernels want it.

A state is a tuple of tensors: `(hidden,)` for Elman and GRU, `(hidden, cell)` for LSTM.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.capture import capture, capturing, scope
from legato.nn.dropout import drop_connect, variational_dropout
from legato.nn.kernels.description import is_hooked, is_stock, register

CellState = tuple[Tensor, ...]  # each (B, D)
Drawn = list[tuple[Tensor | None, Tensor | None]]  # for each layer: a mask (B, I) for its input, and U if changed

HOLD = 1e4  # σ(±HOLD) is 1 or 0 to the last bit, whatever a gate's input adds; float16 can hold it

# Weights that pass through dropout or a cast are new tensors at each step; cuDNN gathers them itself.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class Cell(nn.Module):
    """What the three cells share: parameters for `gates` gates, stacked in PyTorch's order."""

    gates: ClassVar[int]
    parts: ClassVar[int]  # tensors in the state
    step_kernel: ClassVar[Callable[..., Any]]  # PyTorch's for one time step
    scan_kernel: ClassVar[Callable[..., Any]]  # … and for all of them

    def __init__(self, inputs: int, width: int, forget_bias: float = 0.0) -> None:
        """`forget_bias` is for cells that have a gate to forget."""
        super().__init__()
        self.width = width
        self.weight_ih = nn.Parameter(torch.empty(self.gates * width, inputs))  # W
        self.weight_hh = nn.Parameter(torch.empty(self.gates * width, width))  # U
        self.bias_ih = nn.Parameter(torch.empty(self.gates * width))
        self.bias_hh = nn.Parameter(torch.empty(self.gates * width))
        bound = 1 / math.sqrt(self.width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def start(self, rows: int) -> CellState:
        zero = self.bias_hh.new_zeros(rows, self.width)
        return (zero,) * self.parts

    @property
    def inputs(self) -> int:
        return self.weight_ih.shape[1]

    def fuses(self, x: Tensor) -> bool:
        """Whether PyTorch's kernels make a step of (B, I), or all steps of (T, B, I)."""
        return True

    def from_input(self, x: Tensor) -> Tensor:
        """W x + b, (…, gates·D)"""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def from_hidden(self, h: Tensor, recurrent: Tensor | None) -> Tensor:
        """U h + c, (B, gates·D); `recurrent` is U where dropout has changed it."""
        return F.linear(h, self.weight_hh if recurrent is None else recurrent, self.bias_hh)

    def remember(self, steps: int) -> None:
        """Set the gates' biases so that units start out keeping things for 1 to `steps` time steps.

        Chrono initialisation (Tallec & Ollivier 2018): a gate with bias log(T - 1) lets 1/T through.
        """

    def advance(self, from_input: Tensor, state: CellState, recurrent: Tensor | None) -> CellState:
        """One time step by the equations. `from_input` is W x_t + b (B, gates·D); `recurrent` as in `from_hidden`."""
        raise NotImplementedError

    def fused_step(self, x: Tensor, state: CellState, recurrent: Tensor | None) -> CellState:
        """One time step by PyTorch's kernel."""
        given = state if self.parts > 1 else state[0]
        recurrent = self.weight_hh if recurrent is None else recurrent
        new = self.step_kernel(x, given, self.weight_ih, recurrent, self.bias_ih, self.bias_hh)
        return new if self.parts > 1 else (new,)

    def fused_scan(self, x: Tensor, state: CellState, weights: list[Tensor]) -> Any:
        """All time steps by PyTorch's kernel."""
        initial = [part.unsqueeze(0) for part in state]
        given = initial if self.parts > 1 else initial[0]
        return self.scan_kernel(x, given, weights, True, 1, 0.0, self.training, False, False)

    def hold(self, x: Tensor, weight: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Input and W by which padding, where `inside` (T, B, 1) is False, leaves the state's later parts alone.

        The first part, `hidden`, needs no help: it is among the outputs.
        """
        return x, weight


@register("cell")
class ElmanCell(Cell):
    """h_t = tanh(W x_t + U h_{t-1} + b)   (Elman 1990)"""

    gates = 1
    parts = 1
    step_kernel = staticmethod(torch.rnn_tanh_cell)
    scan_kernel = staticmethod(torch.rnn_tanh)

    def advance(self, from_input: Tensor, state: CellState, recurrent: Tensor | None) -> CellState:
        (h,) = state
        h = torch.tanh(from_input + self.from_hidden(h, recurrent))
        capture("hidden", h, "row unit")
        return (h,)


@register("cell")
class GRUCell(Cell):
    """The gated recurrent unit, with the reset gate outside the product, r ∘ (U h + c), as in cuDNN and PyTorch.

    Cho et al. (2014, equation 8) have it inside: U (r ∘ h).

    r_t = σ(W_r x_t + U_r h_{t-1} + b_r)            reset
    z_t = σ(W_z x_t + U_z h_{t-1} + b_z)            update
    n_t = tanh(W_n x_t + b_n + r_t ∘ (U_n h_{t-1} + c_n))
    h_t = (1 - z_t) ∘ n_t + z_t ∘ h_{t-1}
    """

    gates = 3
    parts = 1
    step_kernel = staticmethod(torch.gru_cell)
    scan_kernel = staticmethod(torch.gru)

    @torch.no_grad()
    def remember(self, steps: int) -> None:
        update = slice(self.width, 2 * self.width)
        self.bias_hh[update] = 0
        self.bias_ih[update] = _chrono(self.width, steps)

    def advance(self, from_input: Tensor, state: CellState, recurrent: Tensor | None) -> CellState:
        (h,) = state
        x_r, x_z, x_n = from_input.chunk(3, dim=-1)
        h_r, h_z, h_n = self.from_hidden(h, recurrent).chunk(3, dim=-1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        h = (1 - z) * n + z * h
        for name, value in (("reset_gate", r), ("update_gate", z), ("candidate", n), ("hidden", h)):
            capture(name, value, "row unit")
        return (h,)


@register("cell")
class LSTMCell(Cell):
    """Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate by Gers et al. 2000):

    f_t = σ(W_f x_t + U_f h_{t-1} + b_f)            what to forget
    i_t = σ(W_i x_t + U_i h_{t-1} + b_i)            what to write
    g_t = tanh(W_g x_t + U_g h_{t-1} + b_g)         the candidate, C̃ in the lectures
    o_t = σ(W_o x_t + U_o h_{t-1} + b_o)            what to show
    c_t = f_t ∘ c_{t-1} + i_t ∘ g_t
    h_t = o_t ∘ tanh(c_t)
    """

    gates = 4
    parts = 2
    step_kernel = staticmethod(torch.lstm_cell)
    scan_kernel = staticmethod(torch.lstm)

    def __init__(self, inputs: int, width: int, forget_bias: float = 0.0) -> None:
        super().__init__(inputs, width)
        with torch.no_grad():  # rows [D, 2D) belong to the forget gate
            self.bias_ih[width : 2 * width] += forget_bias

    @torch.no_grad()
    def remember(self, steps: int) -> None:
        write, forget = slice(0, self.width), slice(self.width, 2 * self.width)
        self.bias_hh[: 2 * self.width] = 0
        self.bias_ih[forget] = _chrono(self.width, steps)
        self.bias_ih[write] = -self.bias_ih[forget]

    def advance(self, from_input: Tensor, state: CellState, recurrent: Tensor | None) -> CellState:
        h, c = state
        i, f, g, o = (from_input + self.from_hidden(h, recurrent)).chunk(4, dim=-1)
        f = torch.sigmoid(f)
        i = torch.sigmoid(i)
        g = torch.tanh(g)
        o = torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        gates = {"forget_gate": f, "input_gate": i, "candidate": g, "output_gate": o}
        for name, value in {**gates, "cell": c, "hidden": h}.items():
            capture(name, value, "row unit")
        return h, c

    def hold(self, x: Tensor, weight: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        """One more input, which is 1 on padding; there it shuts the input gate and opens the forget gate.

        So on padding c_t = 1·c_{t-1} + 0·g_t, and no gradient passes the gates.
        """
        column = weight.new_zeros(len(weight), 1)
        column[: self.width] = -HOLD
        column[self.width : 2 * self.width] = HOLD
        return torch.cat([x, (~inside).to(x.dtype)], dim=-1), torch.cat([weight, column], dim=1)


def _chrono(width: int, steps: int) -> Tensor:
    return torch.empty(width).uniform_(1, max(steps - 1, 1)).log()


CELLS: dict[str, type[Cell]] = {"elman": ElmanCell, "gru": GRUCell, "lstm": LSTMCell}


class Layer(nn.Module):
    """A cell run over time, from the left or, with `reverse`, from the right."""

    def __init__(self, cell: Cell, reverse: bool = False, recurrent_dropout: float = 0.0) -> None:
        super().__init__()
        self.cell = cell
        self.reverse = reverse
        self.recurrent_dropout = recurrent_dropout
        self.fused = True

    def forward(
        self, x: Tensor, state: CellState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, CellState]:
        """(T, B, I) to (T, B, D) and the state after each row's last token; padding changes neither."""
        if state is None:
            state = self.cell.start(x.shape[1])
        if lengths is not None:
            lengths = lengths.to(x.device)
        if self.reverse:
            x = flip(x, lengths)
        recurrent = self.changed()
        if self._fuses(x) and not x.is_meta:  # autocast, which is asked there, knows no sketch
            y, state = self._run_fused(x, state, recurrent, lengths)
        else:
            y, state = self._run_written_out(x, state, recurrent, lengths)
        return (flip(y, lengths) if self.reverse else y), state

    def _fuses(self, x: Tensor) -> bool:
        """Whether PyTorch's kernel makes a step of (B, I), or all of (T, B, I): where the cell is ours."""
        return self.fused and is_stock(self.cell) and self.cell.fuses(x) and not capturing()

    def changed(self) -> Tensor | None:
        """U as dropout leaves it, drawn once for a segment; None where there is none."""
        dropped = self.training and self.recurrent_dropout > 0
        return drop_connect(self.cell.weight_hh, self.recurrent_dropout, True) if dropped else None

    def step(self, x: Tensor, state: CellState, recurrent: Tensor | None = None) -> CellState:
        """One token a row, (B, I); `recurrent` is U where dropout has changed it."""
        if self._fuses(x):
            return self.cell.fused_step(x, state, recurrent)
        return self.cell.advance(self.cell.from_input(x), state, recurrent)

    def _run_written_out(
        self, x: Tensor, state: CellState, recurrent: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, CellState]:
        from_input = self.cell.from_input(x)  # (T, B, gates·D)
        inside = None if lengths is None else _inside(x, lengths)
        outputs = []
        for t in range(x.shape[0]):
            new = self.cell.advance(from_input[t], state, recurrent)
            if inside is not None:  # a row that has ended keeps its state
                new = tuple(torch.where(inside[t], n, old) for n, old in zip(new, state, strict=True))
            state = new
            outputs.append(new[0])
        y = torch.stack(outputs)
        return y if inside is None else y * inside, state

    def _run_fused(
        self, x: Tensor, state: CellState, recurrent: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, CellState]:
        recurrent = self.cell.weight_hh if recurrent is None else recurrent
        weights = [self.cell.weight_ih, recurrent, self.cell.bias_ih, self.cell.bias_hh]
        device = x.device.type
        if torch.is_autocast_enabled(device):
            # Autocast knows cuDNN's recurrent kernels in float16 only, so we cast for it.
            dtype = torch.get_autocast_dtype(device)
            x, weights = x.to(dtype), [w.to(dtype) for w in weights]
            state = tuple(part.to(dtype) for part in state)
        with torch.autocast(device, enabled=False):
            if lengths is None:
                y, *last = self.cell.fused_scan(x, state, weights)
                return y, tuple(part[0] for part in last)
            # Padding is on the right, so it is read after all that counts; what it does is then undone.
            inside = _inside(x, lengths)
            x, weights[0] = self.cell.hold(x, weights[0], inside)
            y, _, *others = self.cell.fused_scan(x, state, weights)
            y = y * inside
            ends = (lengths - 1).clamp(min=0).view(1, -1, 1).expand(1, -1, y.shape[-1])
            hidden = torch.where((lengths > 0).unsqueeze(-1), y.gather(0, ends)[0], state[0])
            return y, (hidden, *(part[0] for part in others))


class Recurrent(nn.Module):
    """A stack of layers, each of one or two directions.

    `widths[i]` is layer i's output size; with two directions each gets half of it, so that a
    bidirectional layer is as wide as the one it replaces.
    """

    def __init__(
        self,
        cell: str,
        inputs: int,
        widths: list[int],
        *,
        bidirectional: bool = False,
        hidden_dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        forget_bias: float = 0.0,
        memory: int | None = None,
    ) -> None:
        super().__init__()
        self.cell = cell
        self.hidden_dropout = hidden_dropout
        directions = 2 if bidirectional else 1
        self.layers = nn.ModuleList()
        for width in widths:
            pair = nn.ModuleList()
            for reverse in (False, True)[:directions]:
                made = CELLS[cell](inputs, width // directions, forget_bias)
                if memory is not None:
                    made.remember(memory)
                pair.append(Layer(made, reverse, recurrent_dropout))
            self.layers.append(pair)
            inputs = width

    def _pairs(self) -> list[list[Layer]]:
        """The layers of each depth: one direction or two."""
        return [list(pair) for pair in self.layers]  # type: ignore[call-overload]

    def start(self, rows: int) -> list[CellState]:
        """Zero states, one for each layer and direction."""
        return [layer.cell.start(rows) for pair in self._pairs() for layer in pair]

    def forward(
        self,
        x: Tensor,
        states: list[CellState] | None = None,
        lengths: Tensor | None = None,
        every: list[Tensor] | None = None,
    ) -> tuple[Tensor, list[CellState]]:
        """(T, B, I) to (T, B, D) and each layer's last state. Dropout goes between layers, not after the last.

        What each layer leaves (T, B, D) is added to `every`, where that is given.
        """
        last: list[CellState] = []
        for depth, pair in enumerate(self._pairs()):
            if depth:
                x = variational_dropout(x, self.hidden_dropout, self.training)
            outputs = []
            for side, layer in enumerate(pair):
                before = None if states is None else states[len(last)]
                with scope(f"{self.cell}.{depth}{'.reverse' if side else ''}"):
                    y, after = layer(x, before, lengths)
                outputs.append(y)
                last.append(after)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
            if every is not None:
                every.append(x)
        return x, last

    def draw(self, rows: int) -> Drawn:
        """Dropout for a sequence that goes step by step in training: drawn once, as `forward` does."""
        drawn: Drawn = []
        for depth, (layer, *_) in enumerate(self._pairs()):
            ones = layer.cell.bias_hh.new_ones(1, rows, layer.cell.inputs)
            mask = variational_dropout(ones, self.hidden_dropout, self.training)[0] if depth else None
            drawn.append((mask, layer.changed()))
        return drawn

    def step(self, x: Tensor, states: list[CellState], drawn: Drawn | None = None) -> tuple[Tensor, list[CellState]]:
        """One token a row (B, I) through every layer; one direction only. Without `drawn` nothing is dropped."""
        after = []
        for depth, (pair, state) in enumerate(zip(self._pairs(), states, strict=True)):
            mask, recurrent = drawn[depth] if drawn is not None else (None, None)
            if mask is not None:
                x = x * mask
            with scope(f"{self.cell}.{depth}"):
                if recurrent is None and _only_reads_whole(pair[0]):
                    y, state = pair[0](x.unsqueeze(0), state)
                    x = y[0]
                else:
                    state = pair[0].step(x, state, recurrent)
                    x = state[0]
            after.append(state)
        return x, after


def _only_reads_whole(layer: Layer) -> bool:
    """Whether a step is what `forward` makes of one token: hooks are for that, and so is a layer with its own."""
    return is_hooked(layer) or (type(layer).forward is not Layer.forward and type(layer).step is Layer.step)


def _inside(x: Tensor, lengths: Tensor) -> Tensor:
    """(T, B, 1), True where there is a token."""
    return (torch.arange(len(x), device=x.device).unsqueeze(1) < lengths).unsqueeze(-1)


def flip(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each row read from its last token to its first; padding stays where it is."""
    if lengths is None:
        return x.flip(0)
    steps = torch.arange(x.shape[0], device=x.device).unsqueeze(1)  # (T, 1)
    inside = lengths - 1 - steps  # (T, B)
    source = torch.where(inside >= 0, inside, steps)
    return x.gather(0, source.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
