"""The step on NVIDIA GPUs: kernels of our own (Triton), and whole decoding steps captured as graphs."""
