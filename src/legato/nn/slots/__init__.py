"""States of fixed shapes: rows in places that stay where they are, so that a step can be recorded and replayed."""

from legato.nn.slots.cache_slots import CacheSlots
from legato.nn.slots.slots import Slots
from legato.nn.slots.tensor_slots import TensorSlots

__all__ = ["CacheSlots", "Slots", "TensorSlots"]
