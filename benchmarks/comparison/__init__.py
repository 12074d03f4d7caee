"""What `compare_trl.py` compares, and how it is shown.

models      random Llama models of several sizes, their prompts and their run spec
even_words  their reward, one function for both systems
results     the committed rows and their tables
"""
