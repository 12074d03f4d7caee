"""File formats, read without torch: Hugging Face model folders, safetensors, peft adapters, JSON Lines datasets."""
