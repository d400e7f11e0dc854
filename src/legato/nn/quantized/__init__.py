"""Weights of 8 or 4 bits (weights.py), layers and cells that have them, and how a model gets them (narrowing.py),

without ever being wide (deferred.py).
"""

from legato.nn.quantized.cells import QuantizedCell
from legato.nn.quantized.deferred import Deferred, deferring, read_deferred
from legato.nn.quantized.layers import (
    Narrow,
    NarrowEmbedding,
    NarrowLinear,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedReadout,
)
from legato.nn.quantized.narrowing import BITS, hold_layers, hold_weights, is_quantized, quantize_layers
from legato.nn.quantized.weights import EVEN, GROUP, NORMAL, OUTPUTS, STEPS, QuantizedWeight, matrix_of, quantize

__all__ = [
    "BITS",
    "EVEN",
    "GROUP",
    "NORMAL",
    "OUTPUTS",
    "STEPS",
    "Deferred",
    "Narrow",
    "NarrowEmbedding",
    "NarrowLinear",
    "QuantizedCell",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "QuantizedReadout",
    "QuantizedWeight",
    "deferring",
    "hold_layers",
    "hold_weights",
    "is_quantized",
    "matrix_of",
    "quantize",
    "quantize_layers",
    "read_deferred",
]
