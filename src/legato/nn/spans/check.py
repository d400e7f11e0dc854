"""Whether a kernel for windows and texts that share a row does on a GPU what the equation says."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from legato.nn.attention import visible, written_out_attention

# Of queries, keys, values (B, T, H, K), each token's text (B, T) or None, and a window or None: (B, T, H, K)
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, int | None], Tensor]


def problem_with(attend: Attend, device: torch.device, width: int = 64) -> str | None:
    """What is wrong with causal attention on a small example, forward and backward; None: nothing."""
    length = 160
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False):
        waves = torch.arange(3 * 2 * length * 2 * width, device=device, dtype=torch.float32).mul_(0.37).sin_()
        parts = [each.bfloat16().requires_grad_() for each in waves.view(3, 2, length, 2, width).unbind()]
        places = torch.arange(length, device=device)
        documents = torch.stack([places >= 70, places >= 130]).long()  # (2, length)
        for window, several in ((17, False), (None, True), (17, True)):
            seen = visible(places, places, causal=True, window=window)
            if several:
                seen = seen & (documents[:, :, None] == documents[:, None, :]).unsqueeze(1)
            query, key, value = parts
            found = attend(query, key, value, documents if several else None, window)
            query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
            right = written_out_attention(query, key, value, seen)[0].transpose(1, 2)
            both = [(x, *torch.autograd.grad(x.float().sin().sum(), parts)) for x in (found, right)]
            if not all(torch.allclose(x.float(), y.float(), rtol=0.1, atol=0.05) for x, y in zip(*both, strict=True)):
                return "its results are not those of the equation"
    return None
