"""Models: the decoder, its configuration, LoRA, packing of samples for a forward pass."""
