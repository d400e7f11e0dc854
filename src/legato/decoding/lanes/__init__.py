"""Batches of requests: what they have in common, whose steps the host looks at and whose stay on the device."""
