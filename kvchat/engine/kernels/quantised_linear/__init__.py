"""Dispatch: what computes a linear layer over quantised weights on this machine."""

from kvchat.engine.kernels.quantised_linear.reference import linear
from kvchat.engine.kernels.quantised_linear.weight import Coding, QuantisedWeight, dequantise, quantise

__all__ = ["Coding", "QuantisedWeight", "dequantise", "linear", "quantise"]
