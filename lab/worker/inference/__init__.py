"""Inference on the ranks: generation, quantization, latency, quality."""
