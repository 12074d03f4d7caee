"""`make gpu-check`: proves this project on a GPU machine, part by part; docs/gpu.md."""
